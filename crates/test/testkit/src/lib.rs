//! What every test shares: the real servers, files that real servers wrote, free ports and patience with a limit.
//!
//! **Rule:** nothing is skipped. A test that needs a program that is not there panics and names `make tools`, which
//! installs it. Whatever a test starts dies with the test, also when the test is killed.

mod clock;
mod etcd;
mod fixtures;
mod hosts;
mod lived_in;
mod machines;
mod ports;
mod postgres;
mod process;
mod programs;
mod s3;
mod s3_faulty;
mod terminal;

pub use clock::{Clocks, FakeClock, MachineClock};
pub use etcd::{Cluster, Launch, Seat, Server, Tools, VERSIONS, etcd, given_releases, release_or, release_where};
pub use fixtures::{
    FIXTURE_VERSIONS, expected, fixture_dir, fixtures_root, golden, golden_dir, golden_names, snapshot, snapshot_bytes,
};
pub use hosts::{Host, Hosts};
pub use lived_in::lived_in_snapshot;
pub use machines::Machine;
pub use ports::{Port, free_port};
pub use postgres::{POSTGRES_MAJORS, haproxy, pgbouncer, postgres, start_unprivileged, unprivileged};
pub use process::{Running, kill_hard, run, wait_until};
pub use programs::{consul, copy_program, dnsmasq, project_root, quorate, strace};
pub use s3::{OwnS3, S3, S3_KEY_ID, S3_SECRET, S3Key, StrictS3, s3, s3_locked, s3_on, s3_strict, s3_with};
pub use s3_faulty::{FaultyS3, Mishap, Weather};
pub use terminal::AtTerminal;
