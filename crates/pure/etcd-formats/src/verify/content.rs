//! Checks what the buckets hold: revisions in order and decodable, values that fit their revision, leases.
//!
//! **Invariant:** memory is bounded by the constants below, whatever the database says.

use std::collections::HashMap;

use quorate_faults::{Code, Severity};

use super::Report;
use crate::ReadAt;
use crate::bolt::check::ItemCheck;
use crate::bolt::{Bucket, Db};
use crate::database::lease_id;
use crate::mvcc::{KeyValue, Revision, RevisionKey, fingerprint};

/// Lease ids that are kept for the look-up: 32 MiB.
const LEASES_MAX: usize = 4 << 20;
/// Keys that end on an unknown lease, kept to be named: about 8 MiB.
const SUSPECTS_MAX: usize = 1 << 16;
/// Findings of one kind that are kept word for word.
const KEPT: usize = 20;

/// What every part of a check may look up.
pub(super) struct Context {
    /// Ids of all leases, ascending; `None` if there are too many to keep.
    leases: Option<Vec<i64>>,
    /// History up to here may have holes.
    compact_revision: u64,
}

impl Context {
    pub(super) fn read<S: ReadAt + ?Sized>(
        db: &Db<'_, S>,
        buckets: &[(Vec<u8>, Bucket)],
        compact: Option<u64>,
    ) -> Context {
        let mut leases = Some(Vec::new());
        if let Some((_, bucket)) = buckets.iter().find(|(name, _)| name == b"lease") {
            let walked = db.for_each(bucket, |key, value| match &mut leases {
                Some(ids) if ids.len() < LEASES_MAX => ids.extend(lease_id(key, value)),
                _ => leases = None,
            });
            if walked.is_err() {
                // The damage is reported by the walk over the whole file; here it means that we cannot know.
                leases = None;
            }
        }
        // Bucket order is that of unsigned bytes, ids are signed.
        if let Some(ids) = &mut leases {
            ids.sort_unstable();
        }
        Context { leases, compact_revision: compact.unwrap_or(0) }
    }

    fn lacks_lease(&self, id: i64) -> bool {
        id != 0 && self.leases.as_ref().is_some_and(|ids| ids.binary_search(&id).is_err())
    }
}

/// Something wrong with one item.
struct Wrong {
    code: Code,
    severity: Severity,
    page: u64,
    what: String,
}

/// The check of one bucket, or of a part of one.
pub(super) struct BucketCheck<'c> {
    context: &'c Context,
    is_key: bool,
    wrong: Vec<Wrong>,
    wrong_more: u64,
    first: Option<(u64, RevisionKey, bool)>,
    last: Option<RevisionKey>,
    pub(super) items: u64,
    /// The first put whose lease does not exist: harmless, unless it is the newest of its key.
    first_suspect: Option<Revision>,
    crc: u32,
    crc_bytes: usize,
}

impl<'c> BucketCheck<'c> {
    pub(super) fn new(context: &'c Context, bucket: &[u8]) -> Self {
        BucketCheck {
            context,
            is_key: bucket == b"key",
            wrong: Vec::new(),
            wrong_more: 0,
            first: None,
            last: None,
            items: 0,
            first_suspect: None,
            crc: 0,
            crc_bytes: 0,
        }
    }

    /// The CRC-32C of all items, and how many bytes it covers.
    pub(super) fn crc(&self) -> (u32, usize) {
        (self.crc, self.crc_bytes)
    }

    fn wrong(&mut self, code: Code, severity: Severity, page: u64, what: impl FnOnce() -> String) {
        if self.wrong.len() < KEPT {
            self.wrong.push(Wrong { code, severity, page, what: what() });
        } else {
            self.wrong_more += 1;
        }
    }

    fn key_item(&mut self, page: u64, key: &[u8], value: &[u8]) {
        let Some(at) = RevisionKey::decode(key) else {
            return self.wrong(Code::RevisionInvalid, Severity::Error, page, || {
                format!("a key of {} bytes is not a revision", key.len())
            });
        };
        // Left by a restore with a bumped revision.
        let placeholder = value.is_empty() && !at.tombstone;
        match self.last {
            Some(before) => self.follows(page, before, at, placeholder),
            None => self.first = Some((page, at, placeholder)),
        }
        self.last = Some(at);
        match KeyValue::decode(value) {
            Some(kv) => self.key_value(page, at, &kv, placeholder),
            None => self.wrong(Code::KeyValueInvalid, Severity::Error, page, || {
                format!("the value at revision {} cannot be decoded", show(at.revision))
            }),
        }
    }

    fn follows(&mut self, page: u64, before: RevisionKey, at: RevisionKey, placeholder: bool) {
        let (before, at) = (before.revision, at.revision);
        if before >= at {
            return self.wrong(Code::RevisionInvalid, Severity::Error, page, || {
                format!("revision {} follows {}", show(at), show(before))
            });
        }
        let next_in_transaction = at.main == before.main && before.sub.checked_add(1) == Some(at.sub);
        // Every transaction that writes takes the next revision.
        let new_transaction = before.main.checked_add(1) == Some(at.main) && at.sub == 0;
        if !next_in_transaction && !new_transaction && !placeholder && at.main > self.context.compact_revision {
            self.wrong(Code::RevisionInvalid, Severity::Warning, page, || {
                format!("writes are missing between revisions {} and {}", show(before), show(at))
            });
        }
    }

    fn key_value(&mut self, page: u64, at: RevisionKey, kv: &KeyValue<'_>, placeholder: bool) {
        let main = at.revision.main as i64;
        let problem = if at.tombstone {
            let bare = KeyValue { key: kv.key, ..KeyValue::default() };
            (*kv != bare || kv.key.is_empty()).then_some("a deletion holds something else than a key")
        } else if placeholder {
            None
        } else if kv.key.is_empty() {
            Some("a value has no key")
        } else if kv.mod_revision != main {
            Some("a value says that it was written at another revision")
        } else if kv.create_revision < 1 || kv.create_revision > main || kv.version < 1 {
            Some("a value's creation or version is impossible")
        } else if (kv.version == 1) != (kv.create_revision == main) {
            Some("a value's version and creation contradict each other")
        } else if kv.version.saturating_sub(1) > main.saturating_sub(kv.create_revision) {
            Some("a value has more versions than there were revisions")
        } else {
            None
        };
        if let Some(problem) = problem {
            self.wrong(Code::KeyValueInvalid, Severity::Error, page, || {
                format!("{problem}, at revision {}", show(at.revision))
            });
        }
        if !at.tombstone && self.context.lacks_lease(kv.lease) {
            self.first_suspect.get_or_insert(at.revision);
        }
    }

    /// A check that saw only a part of the bucket cannot say what a key ends on.
    pub(super) fn forget_suspects(&mut self) {
        self.first_suspect = None;
    }

    /// Turns what was found into findings. `db` is needed to see whether suspects were written over later.
    pub(super) fn report<S: ReadAt + ?Sized>(self, db: &Db<'_, S>, bucket: &Bucket, report: &mut Report) {
        let more = self.wrong_more;
        if let Some(first) = self.first_suspect {
            self.report_leases(db, bucket, first, report);
        }
        for wrong in self.wrong {
            report.add(wrong.code, wrong.severity, report.db_place().page(wrong.page), wrong.what);
        }
        if more > 0 {
            report.add(Code::KeyValueInvalid, Severity::Error, report.db_place(), format!("{more} more such findings"));
        }
    }

    fn report_leases<S: ReadAt + ?Sized>(&self, db: &Db<'_, S>, bucket: &Bucket, first: Revision, report: &mut Report) {
        let from = RevisionKey { revision: first, tombstone: false }.encode();
        // Old revisions of a key may well name a lease that has expired; only keys that end on one are at fault.
        let mut ends_on: HashMap<u64, (u64, i64, String)> = HashMap::new();
        let mut overflow = false;
        let walked = db.for_each_from(bucket, &from, |key, value| {
            let Some((at, kv)) = RevisionKey::decode(key).zip(KeyValue::decode(value)) else { return };
            if at.tombstone || !self.context.lacks_lease(kv.lease) {
                if !ends_on.is_empty() {
                    ends_on.remove(&fingerprint(kv.key));
                }
            } else if ends_on.len() < SUSPECTS_MAX {
                let name = String::from_utf8_lossy(kv.key.get(..80).unwrap_or(kv.key)).into_owned();
                ends_on.insert(fingerprint(kv.key), (at.revision.main, kv.lease, name));
            } else {
                overflow = true;
            }
        });
        if walked.is_err() {
            return;
        }
        let mut at_fault: Vec<_> = ends_on.into_values().collect();
        at_fault.sort();
        let more = at_fault.len().saturating_sub(KEPT);
        let mut add = |what| report.add(Code::LeaseMissing, Severity::Warning, report.db_place(), what);
        for (main, lease, key) in at_fault.into_iter().take(KEPT) {
            add(format!("key `{key}` (revision {main}) refers to lease {lease:x}, which does not exist"));
        }
        if more > 0 || overflow {
            let at_least = if overflow { "at least " } else { "" };
            add(format!("{at_least}{more} further keys refer to leases that do not exist"));
        }
    }
}

impl ItemCheck for BucketCheck<'_> {
    fn item(&mut self, page: u64, key: &[u8], value: &[u8]) {
        self.items += 1;
        self.crc = crc32c::crc32c_append(crc32c::crc32c_append(self.crc, key), value);
        self.crc_bytes += key.len() + value.len();
        if self.is_key {
            self.key_item(page, key, value);
        }
    }

    fn absorb_apart(&mut self, later: Self) {
        // What lies between was not looked at, so that nothing is missing there.
        self.absorb(BucketCheck { first: None, ..later });
    }

    fn absorb(&mut self, later: Self) {
        if let (Some(before), Some((page, at, placeholder))) = (self.last, later.first) {
            self.follows(page, before, at, placeholder);
        }
        self.first = self.first.or(later.first);
        self.last = later.last.or(self.last);
        self.items += later.items;
        self.crc = crc32c::crc32c_combine(self.crc, later.crc, later.crc_bytes);
        self.crc_bytes += later.crc_bytes;
        for wrong in later.wrong {
            if self.wrong.len() < KEPT { self.wrong.push(wrong) } else { self.wrong_more += 1 }
        }
        self.wrong_more += later.wrong_more;
        self.first_suspect = self.first_suspect.or(later.first_suspect);
    }
}

fn show(revision: Revision) -> String {
    format!("{}.{}", revision.main, revision.sub)
}
