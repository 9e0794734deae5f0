//! What a look at a node leads to by itself: roles that are let in, certificates that are read again, subscriptions that resume.
//!
//! **Rule:** none of it is a step of the plan; what fails is reported and tried again at the next look.

use std::sync::Arc;

use quorate_plan::postgres::{Seen, StoreNow, must_hold};
use quorate_postgres::group;
use quorate_postgres::server::{self, ConfigChange};
use tracing::{info, warn};

use super::execute::blocking;
use super::fence::boot_now;
use super::here::DATABASE;
use super::life::Life;
use super::observe::{Details, IncomingSeen, PoolInstance};
use crate::turn::in_words;

impl Life {
    /// The server lets in to whom databases were given; the pooler is told by the plan.
    pub(super) async fn let_in(&mut self, instances: &[PoolInstance]) {
        let shared = Arc::clone(&self.shared);
        let pairs: Vec<(String, String)> =
            instances.iter().map(|one| (one.database.clone(), one.user.clone())).collect();
        let told = async {
            let owner = shared.here.owner()?;
            let dir = shared.here.data_dir();
            if blocking(move || server::ensure_instances(&dir, &pairs, owner)).await? == ConfigChange::Changed {
                server::reload(&shared.here.own("postgres", shared.here.limits()).await?).await?;
            }
            Ok(())
        };
        match told.await {
            // Only what the server knows is offered.
            Ok(()) => shared.doors.set_instances(instances),
            Err(fault) => self.failed("let in", &fault),
        }
    }

    /// Certificates that were renewed are given on, and read anew without a restart.
    pub(super) async fn renew_files(&mut self) {
        let shared = Arc::clone(&self.shared);
        let given = match shared.here.ensure_given() {
            Ok(given) if self.told.as_ref() == Some(&given) => return,
            Ok(given) => given,
            Err(fault) => return self.failed("renew certificates", &fault),
        };
        let renewed = async {
            let client = shared.here.own("postgres", shared.here.limits()).await?;
            server::reload(&client).await?;
            shared.doors.reload().await
        };
        match renewed.await {
            // Those who were told are told again if not everybody was.
            Ok(false) => {}
            Ok(true) => {
                if self.told.replace(given).is_some() {
                    info!("server and pooler have read their certificates anew");
                }
            }
            Err(fault) => self.failed("renew certificates", &fault),
        }
    }

    /// Links that an error has stopped go on: at once, and less and less often where the error is still there. Those of a former
    /// writer wait for the plan.
    pub(super) async fn revive(&mut self, details: &Details, seen: &Seen) {
        let me = self.shared.here.name().to_owned();
        let may = |link: &&IncomingSeen| match &seen.store {
            StoreNow::Known(store) => !must_hold(&store.records, &link.name, &me),
            StoreNow::Unknown(_) => true,
        };
        for link in details.incoming.iter().filter(may) {
            let revival = self.revivals.entry(link.from).or_default();
            if !revival.look(!link.stopped, boot_now()) {
                continue;
            }
            let (tries, from) = (revival.tries(), link.name.as_str());
            let revived = async {
                let client = self.shared.here.own(DATABASE, self.shared.here.limits()).await?;
                group::revive_link(&client, link.from).await
            };
            match revived.await {
                Ok(true) => warn!(from, tries, "the link was stopped by an error, and goes on"),
                Ok(false) => {}
                Err(fault) => warn!(from, tries, code = %fault.code(), "the link does not go on: {}", in_words(&fault)),
            }
        }
    }
}
