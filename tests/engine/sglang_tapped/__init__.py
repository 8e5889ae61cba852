# SPDX-License-Identifier: Apache-2.0
"""Models that SGLang finds by SGLANG_EXTERNAL_MODEL_PACKAGE."""
