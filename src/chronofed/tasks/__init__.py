"""What is learned: data sets, models, and the objective that joins them."""
