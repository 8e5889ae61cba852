# SPDX-License-Identifier: Apache-2.0
"""What Python knows of a run. Modules import one way: reading (Run, Tensor) from tables, export, experts and growing, these from edited, structs and library."""
