//! Follows the cluster for a proxy: who its members are, who of them is well, and how far away they are.
//!
//! **Rule:** the list is the one that a quorum confirmed last, and is kept durably: after a reboot, and while nobody confirms one,
//! the last one holds. Who does not vote serves no reads that a quorum confirms, and is not on it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quorate_etcd::aside::ensure_file;
use quorate_etcd::client::{Client, Consistency, Settings};
use quorate_faults::{Code, Fault};
use quorate_host::durable::RealDisk;
use quorate_plan::peering::Upstream;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use tracing::{debug, info, warn};

use super::Proxy;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// And when a connection failed, or someone is new, at least.
const SOON: Duration = Duration::from_millis(100);
/// How long one member may take to tell how it is.
const STATUS_LIMIT: Duration = Duration::from_secs(1);
/// How long a quorum may take to confirm the list.
const LIST_LIMIT: Duration = Duration::from_millis(1500);
/// Answers that fail in a row before a member counts as ill: one may be lost on the way.
const FAILS_MAX: u32 = 2;
/// Far more than the list of any cluster.
const BYTES_MAX: u64 = 256 << 10;
/// Members that are looked at; etcd is slow with more than seven.
const MEMBERS_MAX: usize = 64;

/// A member, by its name and client URL.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Known {
    /// Its name.
    pub name: String,
    /// Its first client URL.
    pub url: String,
}

impl Known {
    fn address(&self) -> &str {
        let rest = self.url.split_once("://").map_or(self.url.as_str(), |(_, rest)| rest);
        rest.split('/').next().unwrap_or(rest)
    }
}

/// How members are asked, at these URLs and with the certificates of the moment.
type Ask = Box<dyn Fn(Vec<String>) -> Result<Settings, Fault> + Send + Sync>;

/// What is followed.
pub struct Follow {
    ask: Ask,
    file: PathBuf,
    declared: Vec<Known>,
    members: BTreeMap<Known, Member>,
}

/// What is known of a member.
#[derive(Default)]
struct Member {
    client: Option<Client>,
    fails: u32,
    healthy: bool,
    rtt_us: Option<u32>,
    /// The last look that it answered in.
    answered: bool,
}

impl Follow {
    /// Begins with the list that was kept, and with what the cluster file declares where none was.
    pub fn new(
        file: PathBuf,
        declared: Vec<Known>,
        ask: impl Fn(Vec<String>) -> Result<Settings, Fault> + Send + Sync + 'static,
    ) -> Follow {
        let kept = read(&file).unwrap_or_else(|fault| {
            warn!(code = %fault.code(), "the list of members that was kept cannot be used: {fault}");
            Vec::new()
        });
        let begin = if kept.is_empty() { declared.clone() } else { kept };
        let members = begin.into_iter().take(MEMBERS_MAX).map(|known| (known, Member::default())).collect();
        Follow { ask: Box::new(ask), file, declared, members }
    }

    /// Keeps a proxy's list live for as long as it is polled.
    pub async fn run(mut self, proxy: &Proxy) {
        // What is known is of use before anyone was asked; what an earlier reading of the file has seen is of more.
        if proxy.members().is_empty() {
            proxy.set_members(self.shown());
        }
        loop {
            let begun = Instant::now();
            let news = self.look(proxy).await;
            let pause = if news { SOON } else { EVERY };
            tokio::select! {
                () = tokio::time::sleep(pause.saturating_sub(begun.elapsed()).max(SOON)) => {}
                // Not more often than that, however many fail.
                () = async { tokio::join!(proxy.trouble(), tokio::time::sleep(SOON)); } => {}
            }
        }
    }

    /// One look. Returns whether somebody is new.
    async fn look(&mut self, proxy: &Proxy) -> bool {
        self.ask_each().await;
        let news = match self.ask_list().await {
            Some(list) => {
                proxy.confirmed();
                self.take(list)
            }
            None => self.fall_back(),
        };
        proxy.set_members(self.shown());
        news
    }

    /// How each of them is.
    async fn ask_each(&mut self) {
        let mut asked = JoinSet::new();
        for (known, member) in &mut self.members {
            if member.client.is_none() {
                // Sent nothing yet; certificates are read anew.
                member.client = connect(&self.ask, &known.url).await;
            }
            let (known, client) = (known.clone(), member.client.clone());
            asked.spawn(async move {
                let begun = Instant::now();
                let answer = match &client {
                    Some(client) => tokio::time::timeout(STATUS_LIMIT, client.status()).await.ok().and_then(Result::ok),
                    None => None,
                };
                (known, answer.map(|status| status.leader != 0), begun.elapsed())
            });
        }
        while let Some(answer) = asked.join_next().await {
            let Ok((known, answer, took)) = answer else { continue };
            let Some(member) = self.members.get_mut(&known) else { continue };
            member.note(answer, took);
        }
    }

    /// The voters, as a quorum confirms them through the first member that can.
    async fn ask_list(&self) -> Option<Vec<Known>> {
        let mut well: Vec<&Member> = self.members.values().filter(|member| member.answered).collect();
        well.sort_by_key(|member| (!member.healthy, member.rtt_us));
        for member in well {
            let Some(client) = &member.client else { continue };
            // A read first: 3.4 answers lists from what it has, and has all that the read saw.
            let asked = async {
                client.serves().await?;
                client.member_list(Consistency::Linearizable).await
            };
            let Ok(Ok(list)) = tokio::time::timeout(LIST_LIMIT, asked).await else { continue };
            let voters = list.members.into_iter().filter(|member| !member.is_learner);
            let known = voters
                .filter_map(|member| Some(Known { name: member.name, url: member.client_urls.into_iter().next()? }));
            let known: Vec<Known> = known.take(MEMBERS_MAX).collect();
            if !known.is_empty() {
                return Some(known);
            }
        }
        None
    }

    /// Goes on with another list, and keeps it. Returns whether somebody is new.
    fn take(&mut self, mut list: Vec<Known>) -> bool {
        list.sort();
        list.dedup();
        if self.members.keys().eq(list.iter()) {
            return false;
        }
        if let Err(fault) = write(&self.file, &list) {
            warn!(code = %fault.code(), "the list of members is not kept: {fault}");
        }
        let names: Vec<&str> = list.iter().map(|known| known.name.as_str()).collect();
        info!("the members are {}", names.join(", "));
        let mut before = std::mem::take(&mut self.members);
        let mut news = false;
        for known in list {
            let member = before.remove(&known);
            news |= member.is_none();
            self.members.insert(known, member.unwrap_or_default());
        }
        news
    }

    /// Nobody confirms a list: where nobody answers at all, those that the file declares are asked as well.
    fn fall_back(&mut self) -> bool {
        if self.members.values().any(|member| member.answered) {
            return false;
        }
        let before = self.members.len();
        for known in &self.declared {
            let there = self.members.keys().any(|member| member.url == known.url);
            if !there && self.members.len() < MEMBERS_MAX {
                self.members.insert(known.clone(), Member::default());
            }
        }
        self.members.len() != before
    }

    fn shown(&self) -> Vec<Upstream> {
        let shown = self.members.iter().map(|(known, member)| Upstream {
            name: known.name.clone(),
            address: known.address().to_owned(),
            healthy: member.healthy,
            rtt_us: member.rtt_us,
        });
        shown.collect()
    }
}

impl Member {
    /// `answer`: whether it knows a leader; none: it did not answer.
    fn note(&mut self, answer: Option<bool>, took: Duration) {
        let first = !self.answered;
        self.answered = answer.is_some();
        if answer.is_none() {
            // Made anew: what was wrong may be the connection, or certificates that were replaced.
            self.client = None;
        }
        if answer != Some(true) {
            self.fails = self.fails.saturating_add(1);
            if self.fails >= FAILS_MAX && self.healthy {
                self.healthy = false;
                debug!("a member is ill");
            }
            return;
        }
        (self.fails, self.healthy) = (0, true);
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        // The first answer holds the handshake as well, and is forgotten with the second. Later ones are smoothed.
        self.rtt_us = Some(match self.rtt_us {
            Some(known) if !first => known - known / 4 + took / 4,
            Some(known) => known.min(took),
            None => took,
        });
    }
}

async fn connect(ask: &Ask, url: &str) -> Option<Client> {
    let settings = ask(vec![url.to_owned()]).map(|settings| Settings { timeout: STATUS_LIMIT, ..settings });
    match settings {
        Ok(settings) => Client::connect(&settings).await.ok(),
        Err(fault) => {
            debug!(code = %fault.code(), "a member cannot be asked: {fault}");
            None
        }
    }
}

fn read(file: &Path) -> Result<Vec<Known>, Fault> {
    let fail = |error| Fault::io(format!("cannot read `{}`", file.display()), error);
    let opened = match std::fs::File::open(file) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(fail(error)),
    };
    let mut bytes = Vec::new();
    opened.take(BYTES_MAX).read_to_end(&mut bytes).map_err(fail)?;
    serde_json::from_slice(&bytes).map_err(|error| {
        Fault::new(Code::NodeStateUnreadable, format!("cannot understand `{}`", file.display()))
            .hint("it is written anew as soon as a member answers")
            .caused_by(error)
    })
}

fn write(file: &Path, list: &[Known]) -> Result<(), Fault> {
    let text = serde_json::to_vec_pretty(list)
        .map_err(|error| Fault::new(Code::Internal, "cannot write the list of members").caused_by(error))?;
    ensure_file(&RealDisk, file, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str) -> Known {
        Known { name: name.to_owned(), url: format!("https://{name}:2379") }
    }

    fn follow(file: &Path, declared: &[&str]) -> Follow {
        let declared = declared.iter().map(|name| known(name)).collect();
        Follow::new(file.to_owned(), declared, |urls| Ok(Settings::new(urls)))
    }

    #[test]
    fn the_last_list_is_there_after_a_reboot_and_a_broken_one_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("members.json");
        let mut first = follow(&file, &["a", "b"]);
        assert_eq!(first.shown().len(), 2, "what the file declares");
        assert!(first.take(vec![known("c"), known("b")]));
        assert!(!first.take(vec![known("b"), known("c")]), "nobody is new");
        assert!(!first.take(vec![known("c")]), "somebody is gone");
        let names = |follow: &Follow| follow.shown().into_iter().map(|member| member.name).collect::<Vec<_>>();
        let again = follow(&file, &["a", "b"]);
        assert_eq!(names(&again), ["c"]);
        assert_eq!(again.shown()[0].address, "c:2379");
        ensure_file(&RealDisk, &file, b"[{").unwrap();
        let mut broken = follow(&file, &["a"]);
        assert_eq!(names(&broken), ["a"]);
        broken.take(vec![known("d")]);
        assert_eq!(names(&follow(&file, &[])), ["d"]);
    }

    #[test]
    fn whoever_the_file_declares_is_asked_when_nobody_of_the_list_answers() {
        let dir = tempfile::tempdir().unwrap();
        let mut list = follow(&dir.path().join("m"), &["a"]);
        list.take(vec![known("b")]);
        assert!(list.fall_back());
        assert_eq!(list.shown().len(), 2);
        assert!(!list.fall_back(), "once");
    }

    #[test]
    fn one_lost_answer_is_no_illness_and_a_member_without_a_leader_is_ill() {
        let mut member = Member::default();
        let ms = Duration::from_millis;
        member.note(Some(true), ms(8));
        assert!(member.healthy);
        member.note(Some(true), ms(4));
        let rtt = member.rtt_us.unwrap();
        assert!((4_000..8_000).contains(&rtt), "{rtt}");
        member.note(None, ms(1000));
        assert!(member.healthy);
        member.note(None, ms(1000));
        assert!(!member.healthy);
        member.note(Some(false), ms(1));
        assert!(!member.healthy, "it knows no leader");
        member.note(Some(true), ms(1));
        assert!(member.healthy);
    }
}
