"""Cases of convolutions."""

from __future__ import annotations

from torch import nn

from support.fusion_equality import normal_tensor
from support.operator_cases.base import CustomCall, case, chain_two

CONVOLUTIONS = [
    case("conv1d", lambda: nn.Conv1d(2, 4, 3), normal_tensor(3, 2, 8)),
    case("conv1d kernel 1", lambda: nn.Conv1d(2, 4, 1), normal_tensor(3, 2, 8)),
    case(
        "conv1d kernel 1 twice",
        chain_two(lambda: nn.Conv1d(2, 4, 1), lambda: nn.Conv1d(4, 3, 1, bias=False)),
        normal_tensor(3, 2, 8),
    ),
    case(
        "conv1d kernel 1 padded",
        chain_two(lambda: nn.Conv1d(2, 4, 1), lambda: nn.Conv1d(4, 3, 1, padding=1)),
        normal_tensor(3, 2, 8),
    ),
    case(
        "conv1d kernel 1 same",
        chain_two(lambda: nn.Conv1d(2, 4, 1), lambda: nn.Conv1d(4, 3, 1, padding="same")),
        normal_tensor(3, 2, 8),
    ),
    case(
        "conv1d kernel 1 strided",
        chain_two(lambda: nn.Conv1d(2, 4, 1), lambda: nn.Conv1d(4, 3, 1, stride=2)),
        normal_tensor(3, 2, 8),
    ),
    case(
        "conv1d dilated",
        chain_two(lambda: nn.Conv1d(2, 4, 3, dilation=2), lambda: nn.Conv1d(4, 3, 2, bias=False)),
        normal_tensor(3, 2, 9),
    ),
    case(
        "conv1d circular",
        chain_two(lambda: nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"), lambda: nn.Conv1d(4, 3, 2)),
        normal_tensor(3, 2, 9),
    ),
    case(
        "conv1d of one sample",
        chain_two(lambda: nn.Conv1d(2, 4, 3), lambda: nn.Conv1d(4, 3, 2)),
        normal_tensor(2, 8),
    ),
    case("conv2d", lambda: nn.Conv2d(2, 4, 3), normal_tensor(3, 2, 5, 5)),
    case(
        "conv2d twice",
        chain_two(lambda: nn.Conv2d(2, 4, 3), lambda: nn.Conv2d(4, 3, 2)),
        normal_tensor(3, 2, 6, 6),
    ),
    case(
        "conv2d without bias",
        chain_two(lambda: nn.Conv2d(2, 4, 3, bias=False), lambda: nn.Conv2d(4, 3, 2, bias=False)),
        normal_tensor(3, 2, 6, 6),
    ),
    case(
        "conv2d oblong",
        chain_two(
            lambda: nn.Conv2d(2, 4, (3, 2), stride=(1, 2), padding=(2, 0)),
            lambda: nn.Conv2d(4, 3, (1, 2), dilation=(1, 2)),
        ),
        normal_tensor(3, 2, 6, 7),
    ),
    case(
        "conv2d same",
        chain_two(
            lambda: nn.Conv2d(2, 4, 3, padding="same"), lambda: nn.Conv2d(4, 3, 2, padding="same", dilation=2)
        ),
        normal_tensor(3, 2, 5, 5),
    ),
    case(
        "conv2d valid",
        chain_two(lambda: nn.Conv2d(2, 4, 3, padding="valid"), lambda: nn.Conv2d(4, 3, 1, padding="valid")),
        normal_tensor(3, 2, 5, 5),
    ),
    case(
        "conv2d circular",
        chain_two(
            lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"),
            lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="circular"),
        ),
        normal_tensor(2, 2, 5, 5),
    ),
    case(
        "conv2d reflect",
        chain_two(
            lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
            lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="reflect"),
        ),
        normal_tensor(2, 2, 5, 5),
    ),
    case(
        "conv2d replicate",
        chain_two(
            lambda: nn.Conv2d(2, 4, 3, padding=1, padding_mode="replicate"),
            lambda: nn.Conv2d(4, 3, 3, padding=1, padding_mode="replicate"),
        ),
        normal_tensor(2, 2, 5, 5),
    ),
    case(
        "conv2d groups",
        chain_two(lambda: nn.Conv2d(4, 6, 3, groups=2), lambda: nn.Conv2d(6, 3, 2, groups=3)),
        normal_tensor(3, 4, 5, 5),
    ),
    case(
        "conv2d depthwise",
        chain_two(
            lambda: nn.Conv2d(4, 8, 3, groups=4, padding=1), lambda: nn.Conv2d(8, 8, 3, groups=8, bias=False)
        ),
        normal_tensor(3, 4, 5, 5),
    ),
    case(
        "conv2d grouped kernel 1",
        chain_two(lambda: nn.Conv2d(4, 6, 1, groups=2), lambda: nn.Conv2d(6, 3, 1, groups=3)),
        normal_tensor(3, 4, 3, 3),
    ),
    case(
        "conv2d kernel 1",
        chain_two(lambda: nn.Conv2d(2, 4, 1), lambda: nn.Conv2d(4, 3, 1)),
        normal_tensor(3, 2, 5, 4),
    ),
    case(
        "conv2d kernel 1 strided",
        chain_two(lambda: nn.Conv2d(2, 4, 1, stride=2), lambda: nn.Conv2d(4, 3, 1, stride=(2, 1))),
        normal_tensor(3, 2, 5, 4),
    ),
    case(
        "conv2d of one sample",
        chain_two(lambda: nn.Conv2d(2, 4, 3), lambda: nn.Conv2d(4, 3, 2)),
        normal_tensor(2, 6, 6),
    ),
    case(
        "conv2d of a single sample",
        chain_two(lambda: nn.Conv2d(2, 4, 3), lambda: nn.Conv2d(4, 3, 2)),
        normal_tensor(1, 2, 6, 6),
    ),
    case(
        "conv3d",
        chain_two(lambda: nn.Conv3d(2, 4, 2), lambda: nn.Conv3d(4, 3, 2, stride=2, padding=1)),
        normal_tensor(2, 2, 3, 4, 4),
    ),
    case(
        "conv3d kernel 1 and depthwise",
        chain_two(lambda: nn.Conv3d(2, 4, 1), lambda: nn.Conv3d(4, 4, 2, groups=4)),
        normal_tensor(2, 2, 3, 3, 3),
    ),
    case(
        "conv_transpose1d",
        chain_two(
            lambda: nn.ConvTranspose1d(2, 4, 3),
            lambda: nn.ConvTranspose1d(4, 3, 3, stride=2, output_padding=1),
        ),
        normal_tensor(3, 2, 5),
    ),
    case(
        "conv_transpose1d groups",
        chain_two(
            lambda: nn.ConvTranspose1d(2, 4, 3, groups=2),
            lambda: nn.ConvTranspose1d(4, 2, 3, groups=2, dilation=2, bias=False),
        ),
        normal_tensor(3, 2, 5),
    ),
    case(
        "conv_transpose2d",
        chain_two(
            lambda: nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1),
            lambda: nn.ConvTranspose2d(4, 3, 2),
        ),
        normal_tensor(3, 2, 3, 3),
    ),
    case(
        "conv_transpose2d groups",
        chain_two(
            lambda: nn.ConvTranspose2d(4, 6, 3, groups=2),
            lambda: nn.ConvTranspose2d(6, 3, 2, groups=3, dilation=2),
        ),
        normal_tensor(2, 4, 3, 3),
    ),
    case(
        "conv_transpose2d oblong",
        chain_two(
            lambda: nn.ConvTranspose2d(2, 4, (1, 3), stride=(2, 3), output_padding=(1, 2)),
            lambda: nn.ConvTranspose2d(4, 3, 1, bias=False),
        ),
        normal_tensor(3, 2, 3, 3),
    ),
    case(
        "conv_transpose2d of one sample",
        chain_two(lambda: nn.ConvTranspose2d(2, 4, 3), lambda: nn.ConvTranspose2d(4, 3, 2)),
        normal_tensor(2, 3, 3),
    ),
    case(
        "conv_transpose2d to a size",
        lambda: CustomCall(
            nn.ConvTranspose2d(2, 4, 3, stride=2), lambda m, x: m(x.tanh(), output_size=[8, 8])
        ),
        normal_tensor(3, 2, 3, 3),
    ),
    case(
        "conv_transpose3d",
        chain_two(
            lambda: nn.ConvTranspose3d(2, 4, 2),
            lambda: nn.ConvTranspose3d(4, 2, 3, stride=2, groups=2, output_padding=1),
        ),
        normal_tensor(2, 2, 2, 2, 3),
    ),
]
