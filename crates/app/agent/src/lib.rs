//! What runs on a node: sources of truth, and whoever turns their answers into work.

#![recursion_limit = "256"]

pub mod auth;
pub mod backups;
pub mod certificates;
pub mod cluster_file;
pub mod declared;
pub mod gardener;
pub mod peering;
pub mod peers;
pub mod pg;
mod processes;
pub mod proxy;
pub mod recover;
pub mod serve;
pub mod sources;
pub mod trust;
pub mod turn;
