# Copyright (c) 2026, Motley contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark
short_description: Measure an OpenAI endpoint under concurrency
version_added: 0.1.0
author: Motley contributors (@motley-inference)
description:
  - Sends streamed requests, so many at a time, after a warm-up. Prints and returns requests and tokens per second and the latencies
    TTFT, TPOT, ITL and E2EL as C(vllm bench serve) defines them, with mean, median, 95th and 99th percentile and maximum.
  - Prompts are made of common words by the seed, none begins as another does, and the server's own count of tokens is used.
    Against vLLM, answers are kept at full length (C(ignore_eos)).
  - Against the planned service it runs once per plan and settings and appends to C(benchmark.jsonl) in the state directory.
    With O(url) it measures any endpoint, without an inventory.
extends_documentation_fragment: [motley.inference.state]
options:
  url:
    description: Address of any OpenAI endpoint, for example V(http://10.0.0.20:8000). The planned service if unset.
    type: str
  api_key_file:
    description: File with the API key; the planned service's own if unset.
    type: path
  model:
    description: Model to ask for; the first one that the endpoint serves if unset.
    type: str
  requests:
    description: How many requests are measured.
    type: int
    default: 64
  concurrency:
    description: How many of them at a time.
    type: int
    default: 8
  prompt_tokens:
    description: About how many tokens each prompt has.
    type: int
    default: 64
  output_tokens:
    description: How many tokens are asked for in each answer.
    type: int
    default: 32
  seed:
    description: The same seed gives the same prompts.
    type: int
    default: 0
  api:
    description: Which API is used; V(auto) takes completions against vLLM and chat elsewhere.
    type: str
    choices: [auto, completions, chat]
    default: auto
  timeout:
    description: Seconds after which a single request counts as failed.
    type: int
    default: 300
  force:
    description: Measure although this plan has a result with these settings.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Measure the planned service once
  motley.inference.benchmark:
  run_once: true

- name: Measure any endpoint
  motley.inference.benchmark:
    url: http://10.0.0.20:8000
    api_key_file: ~/.config/motley/api_key
    concurrency: 16
"""

RETURN = r"""
result:
  description: Settings and figures of the run, or of the earlier one; latencies in milliseconds.
  type: dict
  returned: success
  sample:
    completed: 64
    failed: 0
    duration_s: 21.2
    request_throughput: 3.02
    output_throughput: 371.4
    ttft_ms: {mean: 120.0, std: 11.0, p50: 118.0, p95: 140.0, p99: 151.0, max: 160.0}
skipped_because:
  description: Why nothing was measured.
  type: str
  returned: when nothing was measured
  sample: this plan has a result with these settings
"""
