//! Tests of objects.
