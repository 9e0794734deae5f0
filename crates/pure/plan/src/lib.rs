//! What we want and what we saw, turned into what to do next. Nothing here touches the world.
//!
//! **Invariant:** the same arguments give the same answer: no clock, disk, network, environment or randomness.

#![cfg_attr(not(test), deny(clippy::wildcard_enum_match_arm))]

pub mod auth;
pub mod boxes;
pub mod certificates;
pub mod chain;
pub mod change;
pub mod check;
pub mod estimate;
pub mod etcd_config;
pub mod file_order;
pub mod follow;
pub mod fork;
pub mod init;
pub mod ledger;
pub mod lineage;
pub mod links;
pub mod peering;
pub mod peers;
pub mod phase;
pub mod postgres;
pub mod processes;
pub mod quorum;
pub mod restore_point;
pub mod retention;
pub mod roster;
pub mod schedule;
pub mod server_log;
pub mod spec;
pub mod start;
pub mod taken;
pub mod upkeep;
mod warning;

pub use warning::Warning;
