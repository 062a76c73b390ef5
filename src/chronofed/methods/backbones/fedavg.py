"""FedAvg."""

from typing import ClassVar

from chronofed.methods.backbones.base import Backbone


class FedAvg(Backbone, tag="fedavg"):
    r"""Federated averaging: the server adds the mean client update.

    .. math:: w \gets w + \eta_g \sum_i a_i \Delta_i

    (``CFL Algorithm Framework``). The weights :math:`a_i` of the clients are their shares of the samples, or
    equal: see :class:`~chronofed.methods.method.Method`.
    """

    reference: ClassVar[str] = (
        "McMahan et al. (2017), Communication-Efficient Learning of Deep Networks"
    )
