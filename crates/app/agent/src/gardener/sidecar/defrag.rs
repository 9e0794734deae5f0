//! Defragments on schedule: the others first, the leader last, one at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use quorate_etcd::client::{Client, Consistency, Settings};
use quorate_faults::Result;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::etcdbr::Etcdbr;
use super::{Shared, in_words};

/// Clocks are set and machines sleep, so that the schedule is looked at at least this often.
const LOOK: Duration = Duration::from_secs(20);

/// Between attempts of one that failed.
const AGAIN: Duration = Duration::from_secs(60);

/// Works until the end.
pub(super) async fn work(shared: Arc<Shared>, stop: CancellationToken) {
    let schedule = &shared.settings.defrag_schedule;
    let mut next_ms = schedule.next_after(Timestamp::now().as_millisecond());
    loop {
        let now_ms = Timestamp::now().as_millisecond();
        let wait = Duration::from_millis(u64::try_from(next_ms - now_ms).unwrap_or(0)).min(LOOK);
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = stop.cancelled() => return,
        }
        if Timestamp::now().as_millisecond() < next_ms {
            continue;
        }
        match defragment(&shared.settings, shared.members(), &shared.etcdbr).await {
            Ok(Some(count)) => info!(members = count, "defragmented on schedule"),
            Ok(None) => {}
            Err(fault) => {
                warn!(code = %fault.code(), "cannot defragment yet: {}", in_words(&fault));
                tokio::select! {
                    () = tokio::time::sleep(AGAIN) => continue,
                    () = stop.cancelled() => return,
                }
            }
        }
        next_ms = schedule.next_after(Timestamp::now().as_millisecond());
    }
}

/// `None`: this is another member's work.
async fn defragment(settings: &super::Settings, declared: usize, etcdbr: &Etcdbr) -> Result<Option<usize>> {
    let client = Client::connect(&settings.etcd).await?;
    client.serves().await?;
    if declared == 1 {
        one(&client, settings.defrag_limit, etcdbr).await?;
        return Ok(Some(1));
    }
    let status = client.status().await?;
    if status.header.as_ref().is_none_or(|header| header.member_id != status.leader) {
        return Ok(None);
    }
    let members = client.member_list(Consistency::Linearizable).await?.members;
    let (leader, mut others): (Vec<_>, Vec<_>) = members.into_iter().partition(|member| member.id == status.leader);
    others.extend(leader);
    let mut clients = Vec::new();
    for member in others {
        // One that does not answer now would answer even less afterwards.
        let one = Client::connect(&Settings { endpoints: member.client_urls, ..settings.etcd.clone() }).await?;
        one.status().await?;
        clients.push(one);
    }
    for client in &clients {
        one(client, settings.defrag_limit, etcdbr).await?;
    }
    Ok(Some(clients.len()))
}

async fn one(client: &Client, limit: Duration, etcdbr: &Etcdbr) -> Result<()> {
    let began = Instant::now();
    let done = client.with_timeout(limit).defragment().await;
    etcdbr.defragmented(client.endpoints().next().unwrap_or_default(), began.elapsed(), done.is_ok());
    done.map(|_| ())
}

#[cfg(test)]
mod tests {
    use quorate_testkit::{Seat, Server, etcd};

    use super::super::Settings;
    use super::*;

    #[tokio::test]
    async fn a_member_that_leads_is_defragmented_and_one_that_is_away_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(&etcd("3.5.16"), &Seat::new("n1"), &dir.path().join("n1"));
        let flags = [format!("--endpoints={}", server.seat.client_url())];
        let settings = Settings::read(&flags, |_| None).unwrap();
        let metrics = crate::backups::metrics::Metrics::new();
        let etcdbr = Etcdbr::new(&metrics);
        assert_eq!(defragment(&settings, 1, &etcdbr).await.unwrap(), Some(1));
        // The only member leads, so that a list of members comes to the same.
        assert_eq!(defragment(&settings, 3, &etcdbr).await.unwrap(), Some(1));
        assert_eq!(server.running.log().matches("finished defragmenting directory").count(), 2);
        let counted = "etcdbr_defragmentation_duration_seconds_count{succeeded=\"true\",endpoint=";
        assert!(metrics.text().contains(counted), "{}", metrics.text());
        server.stop();
        assert!(defragment(&settings, 1, &etcdbr).await.is_err());
    }
}
