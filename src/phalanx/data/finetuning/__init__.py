"""Fine-tuning rows: formats and samples."""
