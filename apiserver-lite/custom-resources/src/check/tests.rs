//! Tests of writes of definitions.
