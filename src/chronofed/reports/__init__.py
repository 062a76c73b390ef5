"""Tables, figures and pages made from records; nothing here trains, or imports torch."""
