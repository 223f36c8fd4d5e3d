# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Hook of `ray start` (RAY_START_HOOK): what no flag of it can say."""


def close_client_port(params, head):
    """Keep the head from opening Ray Client's port: `ray start` opens 10001 wherever grpc is installed, and 0 is refused."""
    if head:
        params.ray_client_server_port = None
