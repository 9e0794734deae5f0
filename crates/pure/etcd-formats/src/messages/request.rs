//! What a normal entry asks for, seen from outside: which request, and whether etcd could decode it.

#![deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)]

use crate::fields::{Fields, Head, Value};

/// Which request an entry carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// No data at all: the entry with which a leader begins its term.
    Nothing,
    Range,
    Put,
    DeleteRange,
    Txn,
    Compaction,
    LeaseGrant,
    LeaseRevoke,
    Alarm,
    LeaseCheckpoint,
    /// Users, roles, switching auth on and off, logins.
    Auth,
    ClusterVersionSet,
    MemberAttributesSet,
    DowngradeInfoSet,
    /// A request of the old v2 API (3.4 and 3.5 publish members and versions with it).
    V2,
    /// Valid, with an arm that is not known here.
    Other,
}

/// A normal entry's data, taken apart as far as needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestView {
    /// Which request.
    pub kind: RequestKind,
    /// The request's id, from its header.
    pub id: u64,
}

impl RequestView {
    /// Decodes as etcd does: the internal request first, then the old v2 request. None if neither fits.
    pub fn decode(data: &[u8]) -> Option<RequestView> {
        if data.is_empty() {
            return Some(RequestView { kind: RequestKind::Nothing, id: 0 });
        }
        internal(data).or_else(|| v2(data))
    }

    /// Decodes from the first bytes of a request that is too long to be held. Only what is there is judged.
    pub fn decode_head(head: &[u8]) -> Option<RequestView> {
        match Fields::new(head).head().ok()? {
            Head::Whole(..) => Some(RequestView { kind: RequestKind::Other, id: 0 }),
            Head::Long { field, .. } => Some(RequestView { kind: kind_of(field).unwrap_or(RequestKind::Other), id: 0 }),
        }
    }
}

fn internal(data: &[u8]) -> Option<RequestView> {
    let mut fields = Fields::new(data);
    let mut view = RequestView { kind: RequestKind::Other, id: 0 };
    while let Some((field, value)) = fields.next().ok()? {
        match (field, value) {
            (1, Value::Varint(id)) => view.id = id,
            (100, Value::Bytes(header)) => view.id = header_id(header)?,
            (2, Value::Bytes(nested)) => {
                v2(nested)?;
                view.kind = RequestKind::V2;
            }
            (1 | 2 | 100, _) => return None,
            (arm, value) => {
                if let Some(kind) = kind_of(arm) {
                    let Value::Bytes(message) = value else { return None };
                    walk(message)?;
                    view.kind = kind;
                }
            }
        }
    }
    Some(view)
}

fn kind_of(arm: u64) -> Option<RequestKind> {
    Some(match arm {
        3 => RequestKind::Range,
        4 => RequestKind::Put,
        5 => RequestKind::DeleteRange,
        6 => RequestKind::Txn,
        7 => RequestKind::Compaction,
        8 => RequestKind::LeaseGrant,
        9 => RequestKind::LeaseRevoke,
        10 => RequestKind::Alarm,
        11 => RequestKind::LeaseCheckpoint,
        1000..=1299 => RequestKind::Auth,
        1300 => RequestKind::ClusterVersionSet,
        1301 => RequestKind::MemberAttributesSet,
        1302 => RequestKind::DowngradeInfoSet,
        _ => return None,
    })
}

/// Header{1 id, 2 user name, 3 auth revision}.
fn header_id(header: &[u8]) -> Option<u64> {
    let mut fields = Fields::new(header);
    let mut id = 0;
    while let Some((field, value)) = fields.next().ok()? {
        match (field, value) {
            (1, Value::Varint(given)) => id = given,
            (1, _) => return None,
            _ => {}
        }
    }
    Some(id)
}

/// Request{1 id, 2 method, 3 path, 4 value, 6 previous value; the others are numbers}.
fn v2(data: &[u8]) -> Option<RequestView> {
    let mut fields = Fields::new(data);
    let mut id = 0;
    while let Some((field, value)) = fields.next().ok()? {
        match (field, value) {
            (1, Value::Varint(given)) => id = given,
            (2 | 3 | 4 | 6, Value::Bytes(_)) | (5 | 7..=17, Value::Varint(_)) => {}
            (1..=17, _) => return None,
            _ => {}
        }
    }
    Some(RequestView { kind: RequestKind::V2, id })
}

fn walk(message: &[u8]) -> Option<()> {
    let mut fields = Fields::new(message);
    while fields.next().ok()?.is_some() {}
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_recognised_with_its_id() {
        let put = b"\x22\x06\x0a\x01a\x12\x011\xa2\x06\x0a\x08\x85\x88\xe5\xb3\x8b\xbc\xa8\xeb\x27";
        let view = RequestView::decode(put).unwrap();
        assert_eq!(view.kind, RequestKind::Put);
        assert_ne!(view.id, 0);
    }

    #[test]
    fn a_v2_publication_falls_back_to_the_old_request() {
        let publish = b"\x08\x05\x12\x03PUT\x1a\x0a/0/version\x22\x053.4.0\x28\x00\x32\x00";
        assert_eq!(RequestView::decode(publish), Some(RequestView { kind: RequestKind::V2, id: 5 }));
    }

    #[test]
    fn noise_is_neither() {
        assert_eq!(RequestView::decode(b"\xff\xff\xff\xff"), None);
        assert_eq!(RequestView::decode(b"hello world"), None);
    }
}
