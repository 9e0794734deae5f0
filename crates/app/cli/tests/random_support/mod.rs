//! What the randomised test of `backup follow` is made of.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test that cannot go on says where, and what happened")]

pub(crate) mod chaos;
pub(crate) mod check;
pub(crate) mod dice;
pub(crate) mod follower;
pub(crate) mod members;
pub(crate) mod place;
pub(crate) mod truth;
pub(crate) mod writer;
