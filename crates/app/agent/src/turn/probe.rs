//! Asks etcd again and again whether it serves: a read that a quorum confirms, through this very member.
//!
//! **Rule:** quick while etcd starts, seldom while it serves, and never twice at the same time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quorate_etcd::client::Client;
use quorate_etcd_formats::membership::{ClusterId, MemberId};
use quorate_faults::Fault;
use tokio::sync::watch;

use super::data::in_words;
use super::node::Node;

/// Between two questions while etcd starts, at first.
const FIRST: Duration = Duration::from_millis(10);
/// And at most, while it may be there any moment: most starts take about a second.
const SOON: (Duration, Duration) = (Duration::from_millis(25), Duration::from_secs(10));
/// And at most, when it takes longer.
const LATER: Duration = Duration::from_millis(500);
/// Between two questions while it serves, at most.
const CALM: Duration = Duration::from_secs(2);

/// What came of the last question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Probe {
    /// Not asked yet.
    None,
    /// A read succeeded. Who answered, where that may be asked.
    Serves(Option<Answer>),
    /// It did not, and why.
    Fails(String),
}

/// Who answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) cluster: ClusterId,
    pub(super) member: MemberId,
    pub(super) revision: u64,
}

/// Asks for as long as anyone listens.
pub(super) async fn run(node: Arc<Node>, told: watch::Sender<Probe>) {
    // Two answers must fit into the time for which one counts.
    let calm = CALM.min(node.spec.agent.ready_timeout / 2);
    let (mut client, mut wait, begun) = (None, FIRST, Instant::now());
    loop {
        let probe = match ask(&node, &mut client).await {
            Ok(answer) => Probe::Serves(answer),
            Err(fault) => Probe::Fails(in_words(&fault)),
        };
        let serves = matches!(probe, Probe::Serves(_));
        if told.send(probe).is_err() {
            return;
        }
        let pause = if serves { calm } else { wait };
        let longest = if begun.elapsed() < SOON.1 { SOON.0 } else { LATER };
        wait = if serves { FIRST } else { (wait * 3 / 2).min(longest) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = told.closed() => return,
        }
    }
}

/// Who answers is asked for once for each connection; a user that may not read, and none at all, is no reason to call the
/// member unready, nor to believe whoever answers.
async fn ask(node: &Node, client: &mut Option<(Client, Option<Answer>)>) -> Result<Option<Answer>, Fault> {
    if let Some((known, _)) = client {
        match known.serves().await {
            Ok(()) => return Ok(client.as_ref().and_then(|(_, answer)| *answer)),
            Err(fault) => {
                // Anew, with credentials read again.
                *client = None;
                return Err(fault);
            }
        }
    }
    let fresh = Client::connect(&node.client()?).await?;
    fresh.serves().await?;
    let header = match fresh.header().await {
        Ok(header) => Some(header),
        Err(_) => fresh.who().await.ok(),
    };
    let answer = header.map(|header| Answer {
        cluster: ClusterId(header.cluster_id),
        member: MemberId(header.member_id),
        revision: u64::try_from(header.revision).unwrap_or(0),
    });
    *client = Some((fresh, answer));
    Ok(answer)
}
