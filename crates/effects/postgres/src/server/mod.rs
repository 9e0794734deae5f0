//! One PostgreSQL server: its program, its data dir, its configuration, and its process below the shim.
//!
//! **Rule:** nothing of PostgreSQL runs as root, and no data dir that was not made here is touched.

mod config;
mod datadir;
mod installation;
mod process;
mod render;

pub(crate) use config::put;
pub use config::{ConfigChange, ServerConfig, TlsFiles, ensure_config, ensure_instances};
pub use datadir::{DataMark, DataSeen, ensure_data, observe_data, replace_data};
pub use installation::{Installation, MAJOR_MIN, Places, ServerVersion};
pub use process::{
    StopMode, box_spec, is_isolated, pending_restart, processes_max, reload, server_orders, start, stop_order,
    wait_ready,
};
pub use render::{render_conf, render_hba, render_ident, render_instances};

/// The role that other nodes come as: no superuser; its rights are in `schema/rights.sql`.
pub const MESH_USER: &str = "quorate";
/// The superuser that `initdb` makes.
pub const SUPERUSER: &str = "postgres";
/// The role whose members may give databases to somebody.
pub const OWNERS: &str = "quorate_owners";
/// The role whose members are applications: they enter by the socket alone, which is the door of the node's own pooler.
pub const APPS: &str = "quorate_apps";
