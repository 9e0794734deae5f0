//! What a look at a node leads to by itself: roles that are let in, certificates that are read again, subscriptions that resume.
//!
//! **Rule:** none of it is a step of the plan; what fails is reported and tried again at the next look.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use quorate_faults::Fault;
use quorate_plan::postgres::{Seen, StoreNow, must_hold};
use quorate_postgres::group;
use quorate_postgres::schema;
use quorate_postgres::server::{self, ConfigChange};
use quorate_postgres::sql::Client;
use tracing::{debug, info, warn};

use super::execute::blocking;
use super::fence::boot_now;
use super::here::{DATABASE, Here};
use super::life::{Life, Shared};
use super::observe::{Details, IncomingSeen, PoolInstance};
use crate::turn::in_words;

/// How often subscriptions are checked for tables that they lack, and sessions for revoked certificates: so long a change of the schema
/// waits, and so long a revoked certificate may be used where the server has no list of every authority.
const KEEP_EVERY: Duration = Duration::from_millis(100);

/// Has the subscriptions of this node take new tables, and ends sessions of revoked certificates, for as long as the agent runs. Beside
/// the steps: one of them waits for the tables.
pub(super) async fn keep_server(shared: Arc<Shared>) {
    let mut open: Option<Client> = None;
    loop {
        tokio::time::sleep(KEEP_EVERY).await;
        let client = match open.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => match shared.here.own(DATABASE, shared.here.limits()).await {
                Ok(client) => client,
                Err(_) => continue,
            },
        };
        match keep_once(&shared, &client).await {
            Ok(()) => open = Some(client),
            // Tried again, over another connection: the publisher may be down.
            Err(fault) => debug!(code = %fault.code(), "the server was not looked after: {}", in_words(&fault)),
        }
    }
}

async fn keep_once(shared: &Shared, client: &Client) -> Result<(), Fault> {
    let revoked = shared.revoked.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if !revoked.is_empty() {
        let sessions = group::end_revoked(client, &revoked).await?;
        if sessions > 0 {
            warn!(sessions, "ended sessions of revoked certificates");
        }
    }
    for name in schema::refresh(client).await? {
        info!(subscription = name, "took new tables");
    }
    Ok(())
}

/// Writes the server's configuration as it is to be now.
pub(super) async fn ensure_server_files(here: &Here, isolated: bool) -> Result<(), Fault> {
    let here = here.clone();
    blocking(move || {
        let config = if isolated { here.isolated_server()? } else { here.server()? };
        let installation = here.installation()?;
        server::ensure_config(&here.data_dir(), &config, installation.version).map(drop)
    })
    .await
}

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
            Ok(given) => given,
            Err(fault) => return self.failed("renew certificates", &fault),
        };
        *shared.revoked.lock().unwrap_or_else(PoisonError::into_inner) = given.revoked;
        let given = given.print;
        if self.told.as_ref() == Some(&given) {
            return;
        }
        let renewed = async {
            let client = shared.here.own("postgres", shared.here.limits()).await?;
            // The first list of revoked certificates is named in the configuration.
            ensure_server_files(&shared.here, server::is_isolated(&client).await?).await?;
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
