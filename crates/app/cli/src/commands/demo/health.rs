//! Asks each member how it is.
//!
//! **Rule:** healthy means: it answers, it belongs to this very cluster, it knows a leader, it has no complaint, and a read
//! that needs a quorum succeeds through it.

use std::time::Duration;

use quorate_etcd::client::messages::StatusResponse;
use quorate_etcd::client::{Client, Settings, Tls};
use quorate_faults::Fault;
use tokio::task::JoinHandle;

use super::state::{Demo, Seat};

/// Limit of one question to one member.
const LIMIT: Duration = Duration::from_secs(3);

/// How one member is.
#[derive(Debug)]
pub(super) struct Health {
    /// What it says about itself, when it answers.
    pub(super) status: Option<StatusResponse>,
    /// What is wrong.
    pub(super) complaint: Option<String>,
}

impl Health {
    /// Asks all members at once; the answers are in the order of the seats.
    pub(super) async fn ask_all(demo: &Demo) -> Vec<Health> {
        let cluster = demo.cluster_id().0;
        let asked: Vec<JoinHandle<Health>> =
            demo.seats.iter().map(|seat| tokio::spawn(ask(settings(seat), cluster))).collect();
        let mut answers = Vec::new();
        for answer in asked {
            answers
                .push(answer.await.unwrap_or_else(|error| Health { status: None, complaint: Some(error.to_string()) }));
        }
        answers
    }
}

/// A client of one member.
pub(super) async fn client(seat: &Seat) -> Result<Client, Fault> {
    Client::connect(&settings(seat)).await
}

fn settings(seat: &Seat) -> Settings {
    let file = |name: &str| Some(seat.pki_dir().join(name));
    let tls = Tls { ca: file("client-ca.crt"), cert: file("admin.crt"), key: file("admin.key"), server_name: None };
    Settings { timeout: LIMIT, tls, ..Settings::new([seat.client_url()]) }
}

async fn ask(settings: Settings, cluster: u64) -> Health {
    let client = match Client::connect(&settings).await {
        Ok(client) => client,
        Err(fault) => return Health { status: None, complaint: Some(in_short(&fault)) },
    };
    let status = match client.status().await {
        Ok(status) => status,
        Err(fault) => return Health { status: None, complaint: Some(in_short(&fault)) },
    };
    let complaint = match complaint_of(&status, cluster) {
        None => client.get("/").await.err().map(|fault| in_short(&fault)),
        complaint => complaint,
    };
    Health { status: Some(status), complaint }
}

fn complaint_of(status: &StatusResponse, cluster: u64) -> Option<String> {
    let answered = status.header.unwrap_or_default().cluster_id;
    if answered != cluster {
        return Some(format!("a member of another cluster ({answered:x}) answers on its port"));
    }
    if status.leader == 0 {
        return Some("it knows no leader".to_owned());
    }
    if status.is_learner {
        return Some("it has no vote yet".to_owned());
    }
    status.errors.first().cloned()
}

/// The deepest cause says the most in the fewest words.
fn in_short(fault: &Fault) -> String {
    std::error::Error::source(fault).map_or_else(|| fault.to_string(), ToString::to_string)
}
