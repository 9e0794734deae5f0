//! Who does what only one may do: the agent of the leader backs up and keeps users and roles; members pause one at a time.
//!
//! **Invariant:** two members never pause for upkeep at once: each says that it does before it looks whether another does, so
//! one of the two sees the other.

use std::sync::Arc;
use std::time::Duration;

use quorate_faults::Code;
use quorate_plan::phase::Phase;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::book::Book;
use super::cluster::{Heard, hear};
use super::data::in_words;
use super::node::Node;
use super::publish::Shared;
use super::status::Notice;
use crate::auth;
use crate::peers::{Peers, Upkeep};

/// How often users and roles are compared with the file.
const AUTH_EVERY: Duration = Duration::from_secs(30);
/// And after a failure.
const AUTH_AGAIN: Duration = Duration::from_secs(5);

/// Who leads, as last seen by this member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leader {
    /// Not seen yet.
    Unknown,
    /// This member, or there is no other.
    Me,
    /// Another one.
    Other(String),
}

impl Leader {
    pub(super) fn is_me(&self) -> bool {
        *self == Leader::Me
    }
}

/// What upkeep needs to know of the others.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    pub(super) node: Arc<Node>,
    pub(super) book: Arc<Book>,
    pub(super) peers: Arc<Peers>,
    pub(super) shared: Arc<Shared>,
}

impl Turns {
    /// Takes the right to pause this member. `urgent`: etcd takes no writes anyway, so whoever does not answer is not waited for.
    /// `waited`: everyone has had the time to say that they would pause too, so a leader may.
    pub(super) async fn take(&self, urgent: bool, waited: bool) -> bool {
        if !self.node.has_peers() {
            return true;
        }
        self.shared.set_upkeep(Upkeep::Wanted);
        let heard = hear(&self.peers, &self.book.read()).await;
        let too_soon = self.shared.leader().is_me() && !waited && !urgent;
        if too_soon || !self.may(&heard, urgent) {
            return false;
        }
        self.shared.set_upkeep(Upkeep::Running);
        let heard = hear(&self.peers, &self.book.read()).await;
        let alone = !heard.values().flatten().any(|answer| answer.upkeep == Upkeep::Running);
        if !alone {
            self.shared.set_upkeep(Upkeep::Wanted);
        }
        alone
    }

    /// Gives it back.
    pub(super) fn give_back(&self) {
        self.shared.set_upkeep(Upkeep::None);
    }

    fn may(&self, heard: &Heard, urgent: bool) -> bool {
        let leads = self.shared.leader().is_me();
        heard.values().all(|answer| match answer {
            Err(_) => urgent,
            Ok(other) => {
                let serves = other.phase == Phase::Serving.word();
                let first = match other.upkeep {
                    Upkeep::None => false,
                    Upkeep::Running => true,
                    // The leader comes last, the others by name.
                    Upkeep::Wanted => leads || !other.leads && other.name.as_str() < self.node.name(),
                };
                (serves || urgent) && !first
            }
        })
    }
}

/// Keeps users and roles as declared, while this member leads, until `stop`.
pub(super) async fn auth(node: Arc<Node>, shared: Arc<Shared>, stop: CancellationToken) {
    let Some(declared) = &node.spec.auth else { return };
    loop {
        let mut pause = AUTH_EVERY;
        if shared.leader().is_me() {
            let work = async { auth::reconcile(&crate::turn::connect(&node).await?, declared).await };
            let notices = match work.await {
                Ok(reconciled) => {
                    for done in &reconciled.done {
                        info!("users and roles: {done}");
                    }
                    reconciled.remarks.into_iter().map(|text| Notice::new(Code::Drift, text)).collect()
                }
                Err(fault) => {
                    pause = AUTH_AGAIN;
                    warn!(code = %fault.code(), "users and roles: {}", in_words(&fault));
                    {
                        let notice = Notice::of(&fault);
                        vec![Notice { text: format!("users and roles: {}", notice.text), ..notice }]
                    }
                }
            };
            shared.set_auth(notices);
        } else {
            shared.set_auth(Vec::new());
        }
        tokio::select! { () = tokio::time::sleep(pause) => {}, () = stop.cancelled() => return }
    }
}
