//! What pooler and proxy are told: the texts of their files.
//!
//! **Rule:** a text depends on the cluster file, the door and the group alone, so that whoever looks can tell whether what runs was
//! told the same.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quorate_faults::{Code, Fault};
use quorate_host::state::StateDir;
use quorate_plan::spec::{PgNode, PgWriters};
use quorate_postgres::proxies::{
    HaproxyNode, HaproxySpec, PgbouncerSpec, PoolTarget, ensure_file, render_haproxy, render_pgbouncer, render_userlist,
};

use super::doors::Door;
use super::fence::fresh_token;
use super::here::{DATABASE, Here};
use super::life::state_of;
use super::observe::PoolInstance;

/// The user of the pooler's console.
pub(super) const ADMIN: &str = "quorate_console";

/// What haproxy is told; `members`: who belongs to the group, once that is known.
pub(super) fn proxy_text(here: &Here, members: Option<&BTreeSet<String>>) -> String {
    let belongs = |node: &&PgNode| members.is_none_or(|members| members.contains(&node.name));
    let dir = here.run_dir().join("proxy");
    let node = |node: &PgNode| HaproxyNode {
        name: node.name.clone(),
        host: node.address.clone(),
        port: node.pooler_port,
        health_port: node.health_port,
    };
    let text = render_haproxy(&HaproxySpec {
        nodes: here.pg.nodes.iter().filter(belongs).map(node).collect(),
        listen: listen(&here.node.address),
        write_port: here.node.write_port,
        read_port: here.node.read_port,
        socket: dir.join("proxy.sock"),
        state_file: dir.join("proxy.state"),
        connections_max: 4000,
    });
    match here.owner() {
        Ok(Some(owner)) => text.replacen("global\n", &format!("global\n  uid {}\n  gid {}\n", owner.uid, owner.gid), 1),
        Ok(None) | Err(_) => text,
    }
}

/// What the pooler is told: its users, and all else. `secret`: of its console.
pub(super) fn pooler_files(
    here: &Here,
    dir: &Path,
    secret: &str,
    door: &Door,
    instances: &[PoolInstance],
) -> Result<[(PathBuf, String); 2], Fault> {
    let files = here.given_files()?;
    // No link carries what is in them: they are where writes are, and nowhere else.
    let instances = match door {
        Door::Reader if here.pg.writers == PgWriters::One => &[],
        Door::Closed => &[],
        Door::Reader | Door::Writer(_) | Door::Forward(_) => instances,
    };
    let mut users = here.passwords()?;
    users.push((ADMIN.to_owned(), secret.to_owned()));
    for one in instances {
        if !users.iter().any(|(name, _)| *name == one.user) {
            users.push((one.user.clone(), one.verifier.clone()));
        }
    }
    let target = match door {
        Door::Writer(_) | Door::Reader | Door::Closed => {
            PoolTarget::Own { socket_dir: here.run_dir(), port: here.node.port }
        }
        Door::Forward(to) => {
            let node = here.pg.node(to);
            let node = node.ok_or_else(|| Fault::new(Code::PgSwitchover, format!("`{to}` is not declared")))?;
            PoolTarget::Other { host: node.address.clone(), port: node.pooler_port, ca: Some(files.ca.clone()) }
        }
    };
    let text = render_pgbouncer(&PgbouncerSpec {
        database: DATABASE.to_owned(),
        instances: instances.iter().map(|one| one.database.clone()).collect(),
        target,
        listen: listen(&here.node.address),
        port: here.node.pooler_port,
        socket_dir: dir.to_owned(),
        auth_file: dir.join("users"),
        admin: ADMIN.to_owned(),
        cert: Some((files.cert.clone(), files.key.clone())),
        clients_max: 1000,
        pool_size: 20,
    });
    // A client may show a certificate; one that does is taken by the authority of the nodes.
    let text = format!("{text}client_tls_ca_file = {}\n", files.ca.display());
    Ok([(dir.join("users"), render_userlist(&users)), (dir.join("pgbouncer.ini"), text)])
}

/// Loopback stays loopback; any other address is one of several that this machine may have.
fn listen(address: &str) -> String {
    let loopback = address.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if loopback { address.to_owned() } else { "*".to_owned() }
}

/// The password of the pooler's console: made once, and known to the agents of this node alone.
pub(super) fn console_secret(here: &Here) -> Result<String, Fault> {
    let file = StateDir::open(&state_of(here, "pooler"))?.path().join("console");
    match std::fs::read_to_string(&file) {
        Ok(text) if text.len() == 32 => Ok(text),
        Ok(_) | Err(_) => {
            let secret = fresh_token()?;
            ensure_file(&file, &secret, None)?;
            Ok(secret)
        }
    }
}
