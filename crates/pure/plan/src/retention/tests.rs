//! What stays of which stores.
