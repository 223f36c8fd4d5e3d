# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to do at the machine before the first run: which ISO to write, and what to set up in its firmware."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ansible_collections.motley.inference.plugins.module_utils.talos.schematic import Image


@dataclass(frozen=True)
class Medium:
    """The boot medium of one node and the steps at its console."""

    node: str
    iso: str
    secureboot_iso: str
    steps: tuple[str, ...]


def medium(node: str, image: Image, *, factory_url: str, schematic: str, address: str, disk: str, accelerators: Sequence[str]) -> Medium:
    """Addresses and steps for a node."""
    spark = "gb10" in accelerators
    steps: list[str] = []
    if spark:
        steps.append("While DGX OS is still on it, install all firmware updates: Talos cannot, and the disk will be erased.")
        steps.append("Firmware setup: put the NVMe disk first in the boot order, and USB before it for this once.")
    else:
        steps.append("Firmware setup: UEFI boot, no CSM (the kernel arguments are in the UEFI image); USB first for this once.")
        steps.append("Firmware setup: allow memory mapping above 4 GiB for the GPUs (Above 4G Decoding, Resizable BAR).")
    if image.secureboot:
        steps.append('Secure Boot: put it into setup mode, boot the SecureBoot ISO, choose "Enroll Secure Boot keys", then switch it on.')
    else:
        steps.append("Secure Boot: switch it off (or use the SecureBoot ISO below with motley_talos_image_secureboot: true on this host).")
    iso = image.iso(factory_url, schematic=schematic, secureboot=image.secureboot)
    steps.append(f"Write the ISO to a USB stick: curl -fL -o {node}.iso {iso} && sudo dd if={node}.iso of=/dev/sdX bs=4M oflag=sync")
    steps.append(f"Boot it; the console shows maintenance mode and an address. Give the machine {address}, on the network of all nodes.")
    steps.append(
        f"Its disk {disk} will be taken whole." + (" DGX OS is on it: set motley_install_wipe: true on this host." if spark else "")
        if disk
        else "Set motley_install_disk on this host to the disk that Talos may take."
    )
    return Medium(
        node,
        image.iso(factory_url, schematic=schematic, secureboot=False),
        image.iso(factory_url, schematic=schematic, secureboot=True),
        tuple(steps),
    )


def text(media: Sequence[Medium], *, version: str) -> str:
    """The whole as it is printed."""
    lines = [f"Talos {version}: one boot medium per node, each has its own schematic."]
    for item in media:
        lines += ["", f"{item.node}", f"  ISO             {item.iso}", f"  SecureBoot ISO  {item.secureboot_iso}"]
        lines += [f"  {number}. {step}" for number, step in enumerate(item.steps, 1)]
    lines += ["", "Then run the site playbook."]
    return "\n".join(lines)
