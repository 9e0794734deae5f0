//! Carries decisions out: brings the full, reads the deltas, and decides again whenever reading proves a claim wrong.
//!
//! **Invariant:** a result is given only for a chain that was read to its last byte and held. Each round either gives
//! one or learns something about an object, so there are no more rounds than there are things to learn.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quorate_etcd_formats::database::Facts;
use quorate_faults::{Code, Fault, Result};
use quorate_plan::chain::{Chain, Decision, Kind, Layout, Object, State, Target};
use quorate_plan::lineage::Lineage;
use quorate_plan::restore_point::RestorePoint;

use crate::base::Base;
use crate::body;
use crate::catalog::Catalog;
use crate::decode::Failure;
use crate::events::{ChainEvents, Surprise, Used};
use crate::store::Store;

/// A store, what is known about it, and where large files may lie for a while.
pub struct Session {
    /// The store.
    pub store: Arc<Store>,
    /// What is known about it.
    pub catalog: Catalog,
    /// Threads that decode.
    pub threads: usize,
    scratch: PathBuf,
    /// What reading proved to be other than claimed, in words.
    pub learned: Vec<(Code, String)>,
}

/// Whose backups are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// The only ones; several are a fault.
    TheOnly,
    /// Those of the lineage that has one of these clusters.
    Of(Vec<u64>),
}

/// What is wanted.
#[derive(Debug, Clone)]
pub enum Wanted {
    /// A state.
    Target(Target),
    /// Exactly this point.
    Point(RestorePoint),
}

/// What is about to be read.
#[derive(Debug, Clone)]
pub struct Planned {
    /// The revision that the chain leads to; a wanted time may cut it earlier.
    pub revision: u64,
    /// The digest of a restore point for that revision.
    pub digest: String,
    /// Why the chain ends before the newest revision that is mentioned.
    pub short: Option<String>,
}

/// A chain that was read and held.
pub struct Proven<T> {
    /// What the work gave.
    pub result: T,
    /// The decision that was carried out.
    pub decision: Decision,
    /// The full's index in the catalog.
    pub base: usize,
    /// The deltas that were used.
    pub used: Vec<Used>,
    /// The revision that was reached.
    pub revision: u64,
    /// Writes that were replayed.
    pub events: u64,
    /// When the last replayed write was recorded.
    pub last_time_ms: Option<i64>,
    /// The digest of a restore point for it.
    pub digest: String,
}

impl Session {
    /// Lists a store, all of it. Large files go to `scratch` while they are needed.
    pub fn open(url: &str, scratch: &Path) -> Result<Session> {
        let store = Store::open(url, false)?;
        let catalog = Catalog::read(&store)?;
        let threads = std::thread::available_parallelism().map_or(1, |cores| cores.get().min(8));
        let learned = known_bad(&catalog);
        Ok(Session { store: Arc::new(store), catalog, threads, scratch: scratch.to_owned(), learned })
    }

    /// Lists what a store holds of one lineage.
    pub fn open_for(url: &str, scratch: &Path, whose: &Whose) -> Result<Session> {
        let mut session = Session::open(url, scratch)?;
        session.narrow(whose)?;
        Ok(session)
    }

    /// Keeps to one lineage from here on. Where there is nothing at all, there is nothing to choose.
    pub fn narrow(&mut self, whose: &Whose) -> Result<Option<Lineage>> {
        let own: &[u64] = match whose {
            Whose::TheOnly => &[],
            Whose::Of(clusters) => clusters,
        };
        let all = self.catalog.lineages(own);
        let found = match whose {
            Whose::Of(clusters) => {
                let mine = all.iter().find(|lineage| lineage.has_any(clusters));
                // What does not say whose it is may be anyone's, if there is nothing else.
                mine.or_else(|| all.first().filter(|only| all.len() == 1 && only.clusters.is_empty()))
            }
            Whose::TheOnly => {
                let mut with = all.iter().filter(|lineage| !lineage.objects.is_empty());
                let first = with.next().or(all.first());
                if with.next().is_some() {
                    return Err(self.several(&all));
                }
                first
            }
        };
        match (found, whose) {
            (None, Whose::Of(clusters)) if !all.is_empty() => Err(self.none_of(clusters, &all)),
            (None, _) => Ok(None),
            (Some(lineage), _) => {
                self.catalog.narrow(lineage);
                Ok(Some(lineage.clone()))
            }
        }
    }

    fn several(&self, all: &[Lineage]) -> Fault {
        let url = self.store.url();
        let titles: Vec<String> = all.iter().map(Lineage::title).collect();
        let example = all.iter().find(|lineage| lineage.newest_cluster != 0).map_or(0, |one| one.newest_cluster);
        Fault::new(Code::LineageNotNamed, format!("`{url}` holds backups of several clusters: {}", titles.join("; ")))
            .hint(format!("name one of them, such as `--cluster {example:x}`; `quorate backup list` shows each"))
    }

    fn none_of(&self, clusters: &[u64], all: &[Lineage]) -> Fault {
        let url = self.store.url();
        let wanted = clusters.first().copied().unwrap_or(0);
        let titles: Vec<String> = all.iter().map(Lineage::title).collect();
        let what = format!("`{url}` holds no backup of cluster {wanted:x}, only of {}", titles.join("; "));
        Fault::new(Code::LineageMissing, what).hint(format!("see `quorate backup list --store {url}`"))
    }

    /// Runs `work` on the full and the deltas that lead to what is wanted, again if something proves to be otherwise.
    pub fn run<T>(
        &mut self,
        wanted: &Wanted,
        mut work: impl FnMut(&Base, &mut ChainEvents, &Planned) -> Result<T>,
    ) -> Result<Proven<T>> {
        let until_ms = match wanted {
            Wanted::Target(Target::Time(time)) => Some(*time),
            Wanted::Target(Target::Newest | Target::Revision(_)) | Wanted::Point(_) => None,
        };
        loop {
            let (decision, chain, base) = self.choose(wanted)?;
            let digest = self.planned_digest(&chain, base.stored_sha256)?;
            let planned = Planned { revision: chain.reach, digest, short: decision.short.clone() };
            let mut events = ChainEvents::start(&self.store, &self.catalog, &chain, &base, until_ms, self.threads);
            let result = work(&base, &mut events, &planned);
            if result.is_ok() && !events.is_proven() {
                // Work that needed nothing proves nothing; an error here is a surprise, which is looked at next.
                let _ = events.drain();
            }
            if let Some(surprise) = events.take_surprise() {
                self.learn(surprise, chain.base)?;
                continue;
            }
            let result = result?;
            let digest = read_digest(events.revision(), &base, events.used());
            if let Wanted::Point(point) = wanted
                && (point.digest != digest || point.revision != events.revision())
            {
                return Err(self.point_gone(point));
            }
            return Ok(Proven {
                result,
                decision,
                base: chain.base,
                used: events.used().to_vec(),
                revision: events.revision(),
                events: events.given(),
                last_time_ms: events.last_time_ms(),
                digest,
            });
        }
    }

    /// The revision that the chain to a state leads to, by what is claimed; a wanted time may cut it earlier.
    pub fn reach(&self, target: Target) -> Result<u64> {
        let decision = self.catalog.decide(target);
        decision.chain.as_ref().map(|chain| chain.reach).ok_or_else(|| self.no_chain(&decision, target))
    }

    /// The revision and digest of the newest state by what is claimed, without reading deltas.
    pub fn newest_point(&mut self) -> Result<(u64, String)> {
        loop {
            let decision = self.catalog.decide(Target::Newest);
            let chain = decision.chain.clone().ok_or_else(|| self.no_chain(&decision, Target::Newest))?;
            let base_sha = match self.catalog.handles[chain.base].stored_sha256 {
                // A manifest says what our own full holds; without one there is no hash here before it was brought.
                Some(sha256) if self.catalog.objects[chain.base].layout == Layout::Quorate => sha256,
                _ => match self.bring(chain.base)? {
                    Some(base) => base.stored_sha256,
                    None => continue,
                },
            };
            return Ok((chain.reach, self.planned_digest(&chain, base_sha)?));
        }
    }

    /// What the newest full that can be restored says in its small buckets, among it the members of its cluster. It is read and its
    /// hash is checked.
    pub fn newest_facts(&mut self) -> Result<Facts> {
        let (_, _, base) = self.choose(&Wanted::Target(Target::Newest))?;
        Ok(base.facts)
    }

    /// What the full of this name holds. `None`: there is none that can be read.
    pub fn facts_of(&mut self, name: &str) -> Result<Option<Facts>> {
        // Bringing it may correct what it claims, once.
        for _ in 0..2 {
            let Some(index) = self.catalog.objects.iter().position(|object| object.name == name) else { break };
            if let Some(base) = self.bring(index)? {
                return Ok(Some(base.facts));
            }
        }
        Ok(None)
    }

    /// Decides, and brings the full. Goes on until the full is what the decision took it for.
    fn choose(&mut self, wanted: &Wanted) -> Result<(Decision, Chain, Base)> {
        match wanted {
            Wanted::Target(target) => loop {
                let decision = self.catalog.decide(*target);
                let chain = decision.chain.clone().ok_or_else(|| self.no_chain(&decision, *target))?;
                if let Some(base) = self.bring(chain.base)? {
                    return Ok((decision, chain, base));
                }
            },
            Wanted::Point(point) => self.choose_point(point),
        }
    }

    /// The chain that a point was made from: each full may be the one that it begins with.
    fn choose_point(&mut self, point: &RestorePoint) -> Result<(Decision, Chain, Base)> {
        let target = Target::Revision(point.revision);
        let mut fulls: Vec<usize> = (0..self.catalog.objects.len())
            .filter(|index| self.catalog.objects[*index].kind == Kind::Full)
            .filter(|index| self.catalog.objects[*index].last <= point.revision)
            .collect();
        fulls.sort_by_key(|index| std::cmp::Reverse(self.catalog.objects[*index].last));
        for full in fulls {
            // Bringing it may correct what it claims, once.
            let base = match self.bring(full)? {
                Some(base) => Some(base),
                None => self.bring(full)?,
            };
            let Some((base, decision)) = base.zip(self.decide_from(full, target)) else { continue };
            let Some(chain) = decision.chain.clone() else { continue };
            if self.planned_digest(&chain, base.stored_sha256)? == point.digest {
                return Ok((decision, chain, base));
            }
        }
        Err(self.point_gone(point))
    }

    /// The decision if this were the only full.
    fn decide_from(&self, full: usize, target: Target) -> Option<Decision> {
        let hidden = |(index, object): (usize, &Object)| {
            let other = object.kind == Kind::Full && index != full;
            let state = if other { State::Bad("another full is meant".to_owned()) } else { object.state.clone() };
            Object { state, ..object.clone() }
        };
        let objects: Vec<Object> = self.catalog.objects.iter().enumerate().map(hidden).collect();
        let decision = quorate_plan::chain::decide(&objects, &self.catalog.epochs, target);
        decision.chain.is_some().then_some(decision)
    }

    /// Brings a full; `None` if that taught something, so that the decision must be made again.
    fn bring(&mut self, index: usize) -> Result<Option<Base>> {
        let name = self.catalog.objects[index].name.clone();
        let base = match Base::fetch(&self.store, &name, &self.catalog.handles[index], &self.scratch) {
            Ok(base) => base,
            Err(Failure::Store(fault)) => return Err(fault),
            Err(Failure::Damaged(why)) => {
                self.learn(Surprise::Unusable { object: index, why }, index)?;
                return Ok(None);
            }
        };
        self.catalog.handles[index].stored_sha256 = Some(base.stored_sha256);
        let claimed = self.catalog.objects[index].last;
        let revision = base.revision();
        if claimed != revision {
            self.learn(Surprise::OtherRange { object: index, first: revision, last: revision }, index)?;
            return Ok(None);
        }
        self.catalog.objects[index].state = State::Proven;
        Ok(Some(base))
    }

    /// The digest by what is stored now; reading compares each object with it.
    fn planned_digest(&mut self, chain: &Chain, base_sha256: [u8; 32]) -> Result<String> {
        let mut parts = vec![(0, base_sha256)];
        for (index, to) in &chain.deltas {
            parts.push((*to, self.stored_sha256(*index)?));
        }
        Ok(RestorePoint::digest(chain.reach, parts))
    }

    fn stored_sha256(&mut self, index: usize) -> Result<[u8; 32]> {
        if let Some(sha256) = self.catalog.handles[index].stored_sha256 {
            return Ok(sha256);
        }
        let sha256 = body::stored_sha256(&self.store, &self.catalog.handles[index])?;
        self.catalog.handles[index].stored_sha256 = Some(sha256);
        Ok(sha256)
    }

    fn learn(&mut self, surprise: Surprise, base: usize) -> Result<()> {
        match surprise {
            Surprise::Store(fault) => return Err(fault),
            Surprise::Unusable { object, why } => {
                let name = &self.catalog.objects[object].name;
                self.learned.push((Code::ObjectDamaged, format!("`{name}` cannot be used: {why}")));
                self.catalog.condemn(object, why);
            }
            Surprise::OtherRange { object, first, last } => self.correct(object, first, last),
            Surprise::Conflict { objects, revision } => {
                let [one, other] = objects.map(|object| self.catalog.objects[object].name.clone());
                let what =
                    format!("`{one}` and `{other}` disagree about revision {revision}: two histories are in the store");
                for object in objects {
                    self.catalog.condemn(object, what.clone());
                }
                self.learned.push((Code::ObjectMisnamed, what));
            }
            Surprise::BaseTooNew => {
                let name = &self.catalog.objects[base].name;
                let why = "it holds writes that are younger than the wanted time";
                self.learned.push((Code::ObjectMisnamed, format!("`{name}`: {why}")));
                self.catalog.condemn(base, why);
            }
        }
        Ok(())
    }

    /// Believes the content. An object that was corrected before and still surprises is not used.
    fn correct(&mut self, index: usize, first: u64, last: u64) {
        let expected = self.catalog.may_lead_to(index, last);
        let object = &mut self.catalog.objects[index];
        let what = match object.kind {
            Kind::Full => format!("`{}` says revision {} and holds revision {last}", object.name, object.last),
            Kind::Delta => {
                let (said_first, said_last) = (object.first, object.last);
                format!("`{}` says revisions {said_first} to {said_last} and holds {first} to {last}", object.name)
            }
        };
        let again = object.state == State::Proven;
        if !expected {
            self.learned.push((Code::ObjectMisnamed, what.clone()));
        }
        if again {
            return self.catalog.condemn(index, what);
        }
        (object.first, object.last, object.state) = (first, last, State::Proven);
    }

    fn no_chain(&self, decision: &Decision, target: Target) -> Fault {
        let url = self.store.url();
        let why = decision.short.clone().unwrap_or_else(|| "nothing in it can be used".to_owned());
        let Some(newest) = decision.newest_provable() else {
            return Fault::new(Code::ChainNone, format!("cannot restore from `{url}`: {why}"))
                .hint(format!("see what is wrong with each object: `quorate backup verify --store {url}`"));
        };
        let wanted = match target {
            Target::Newest => "its newest state".to_owned(),
            Target::Revision(revision) => format!("revision {revision}"),
            Target::Time(_) => "that time".to_owned(),
        };
        let spans: Vec<String> =
            decision.recoverable.iter().map(|span| format!("{} to {}", span.from, span.to)).collect();
        Fault::new(Code::ChainTarget, format!("cannot restore {wanted} from `{url}`: {why}"))
            .hint(format!("revisions {} can be restored, for example `--to-revision {newest}`", spans.join(" and ")))
    }

    fn point_gone(&self, point: &RestorePoint) -> Fault {
        let url = self.store.url();
        Fault::new(Code::PointGone, format!("cannot restore `{point}`: no chain of `{url}` leads to that very state"))
            .hint(format!("print a new point with `quorate backup list --store {url}` and give it to all members"))
    }
}

/// What the listing alone shows to be unusable, in words.
fn known_bad(catalog: &Catalog) -> Vec<(Code, String)> {
    let told = |object: &Object| match &object.state {
        State::Bad(why) => Some((Code::ObjectDamaged, format!("`{}` cannot be used: {why}", object.name))),
        State::Claimed | State::Proven => None,
    };
    catalog.objects.iter().filter_map(told).collect()
}

/// What a chain that was read amounts to.
fn read_digest(revision: u64, base: &Base, used: &[Used]) -> String {
    let deltas = used.iter().map(|used| (used.to, used.stored_sha256));
    RestorePoint::digest(revision, [(0, base.stored_sha256)].into_iter().chain(deltas))
}
