//! Asks each member how it is.
//!
//! **Rule:** healthy means: it answers, it belongs to this very cluster, it knows a leader, it has no complaint, and a read
//! that needs a quorum succeeds through it.

use std::time::Duration;

use quorate_etcd::client::messages::StatusResponse;
use quorate_etcd::client::{Client, Settings};
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
        let cluster = demo.founding.cluster_id.0;
        let asked: Vec<JoinHandle<Health>> =
            demo.seats.iter().map(|seat| tokio::spawn(ask(seat.client_url(), cluster))).collect();
        let mut answers = Vec::new();
        for answer in asked {
            answers
                .push(answer.await.unwrap_or_else(|error| Health { status: None, complaint: Some(error.to_string()) }));
        }
        answers
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.complaint.is_none()
    }
}

/// A client of one member.
pub(super) async fn client(seat: &Seat) -> Result<Client, Fault> {
    connect(seat.client_url()).await
}

async fn connect(url: String) -> Result<Client, Fault> {
    Client::connect(&Settings { timeout: LIMIT, ..Settings::new([url]) }).await
}

async fn ask(url: String, cluster: u64) -> Health {
    let client = match connect(url).await {
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
    status.errors.first().cloned()
}

/// The deepest cause says the most in the fewest words.
fn in_short(fault: &Fault) -> String {
    std::error::Error::source(fault).map_or_else(|| fault.to_string(), ToString::to_string)
}
