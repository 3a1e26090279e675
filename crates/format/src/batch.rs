//! Log batches: see `docs/FORMAT.md`.
