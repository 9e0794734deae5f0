//! From learner to voter: what a newcomer does beside its etcd until it votes.
//!
//! **Rule:** a learner asks for its vote through a voter, with a proof of the quorum, and only with nearly all of the data.

use quorate_etcd::client::Client;
use quorate_etcd::client::messages::StatusResponse;
use quorate_etcd_formats::membership::MemberId;
use quorate_faults::{Code, Fault};
use quorate_plan::change::has_caught_up;
use quorate_plan::peers;
use quorate_plan::phase::Phase;
use quorate_plan::quorum::Change;
use quorate_plan::start::{Halt, PeerFounding};
use tracing::info;

use super::beside::Beside;
use super::cluster::hear;
use super::data::in_words;
use super::membership::{Through, prove_by, through};
use crate::peering::point;

impl Beside {
    /// The others, connected.
    pub(super) async fn others(&mut self) -> Result<Client, Fault> {
        if let Some(others) = &self.others {
            return Ok(others.clone());
        }
        let others = Client::connect(&self.node.client_of_others()?).await?;
        others.serves().await?;
        self.others = Some(others.clone());
        Ok(others)
    }

    /// Asks the others to let this learner vote, once it has nearly all that they have: etcd itself is content with less. The agent of
    /// the leader does the same by its plan of changes.
    pub(super) async fn promote(&mut self, status: &StatusResponse) -> Result<(), Fault> {
        let Some(me) = status.header.as_ref().map(|header| header.member_id) else { return Ok(()) };
        let (others, ledger) = (self.others().await?, self.book.read());
        let (_, through) = tokio::try_join!(self.copy_memory(), through(&others, &ledger))?;
        let Through { client, list } = through;
        // Peers that are silent take their time: this one has come further meanwhile.
        let own = async {
            match &self.client {
                Some(own) => own.status().await,
                None => Ok(status.clone()),
            }
        };
        // A voter that has just served a read knows all that the leader had committed then.
        let (own, voter) = tokio::try_join!(own, client.status())?;
        let has = if own.raft_applied_index > 0 { own.raft_applied_index } else { own.raft_index };
        if !has_caught_up(has, voter.raft_index) {
            let behind = voter.raft_index.saturating_sub(has);
            self.learns(&format!("it is {behind} entries behind"));
            return Ok(());
        }
        let connected: Vec<&Client> = self.client.iter().chain([&client]).collect();
        prove_by(&self.node, &list, Change::Promote, self.node.name(), &connected).await?;
        match client.member_promote(me).await {
            Ok(_) => {
                point("promoted");
                info!("member {} has caught up, and votes", MemberId(me));
                self.shared.done(format!("joined the cluster as member {}", MemberId(me)));
            }
            Err(fault) => self.learns(&in_words(&fault)),
        }
        Ok(())
    }

    fn learns(&self, why: &str) {
        let why = format!("this member learns, and does not vote yet: {why}");
        let way_out = "it is promoted once it has caught up".to_owned();
        let halt = Halt { code: Code::StillLearning, why, way_out, lost: None };
        self.shared.halt(Phase::Waiting, &halt);
    }

    /// Takes over what the others remember, before this member votes: their memory then survives them.
    async fn copy_memory(&self) -> Result<(), Fault> {
        let ledger = self.book.read();
        let heard = hear(&self.peers, &ledger).await;
        let me = self.node.name().to_owned();
        let answers: Vec<_> = heard.into_values().flatten().map(|answer| answer.seen_by(&me, None)).collect();
        self.write(move |ledger| {
            // What is told of another cluster does not belong into this ledger.
            let ours = ledger.ids().map(|(cluster, _)| PeerFounding::Founded(cluster));
            let same = answers.iter().filter(|answer| Some(&answer.founding) == ours.as_ref());
            *ledger = peers::remember(ledger, &me, &[], same);
        })
        .await
        .map(|_| ())
    }
}
