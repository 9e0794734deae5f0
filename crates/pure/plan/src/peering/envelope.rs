//! Signed records of a peer-managed cluster: the bytes that are signed, and where the signatures stand.
//!
//! ```text
//!   {"hash": …, "text": …, "serial": 7, "signatures": [{"certificate": …, "signature": …}]}
//!   signed: purpose · cluster token · key · the record without its signatures, in canonical form
//! ```
//!
//! **Invariant:** two different records, keys or clusters never have the same signed bytes, so that no signature fits another record, key
//! or cluster. Releases that sign nothing skip the additional fields and read the rest.

use quorate_etcd_formats::hex::hex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The field with the signatures.
const SIGNATURES: &str = "signatures";
/// More signatures than a cluster has servers.
const SIGNATURES_MAX: usize = 32;
/// What these signatures are for, so that no other use of the same keys can be taken for one.
const PURPOSE: &str = "quorate record 1";

/// One signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The agent certificate of the node that signed: DER in base64.
    pub certificate: String,
    /// ECDSA over P-256 with SHA-256, in base64.
    pub signature: String,
}

/// The bytes that are signed for a record under this key.
pub fn signed_bytes(token: &str, key: &str, record: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [PURPOSE, token, key, &canonical(&unsigned(record))] {
        bytes.extend_from_slice(&u64::try_from(word.len()).unwrap_or(u64::MAX).to_be_bytes());
        bytes.extend_from_slice(word.as_bytes());
    }
    bytes
}

/// The signatures of a record; what is none is left out.
pub fn signatures_of(record: &Value) -> Vec<Signature> {
    let found = record.get(SIGNATURES).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let parsed = found.iter().take(SIGNATURES_MAX).filter_map(|one| serde_json::from_value(one.clone()).ok());
    parsed.collect()
}

/// The record with these signatures.
#[must_use]
pub fn with_signatures(record: &Value, signatures: &[Signature]) -> Value {
    let mut record = unsigned(record);
    if let (Value::Object(fields), Ok(signatures)) = (&mut record, serde_json::to_value(signatures)) {
        fields.insert(SIGNATURES.to_owned(), signatures);
    }
    record
}

/// What tells a record from every other one.
pub fn digest_of(record: &Value) -> String {
    hex(&Sha256::digest(canonical(record)))
}

fn unsigned(record: &Value) -> Value {
    match record {
        Value::Object(fields) => Value::Object(
            fields.iter().filter(|(key, _)| *key != SIGNATURES).map(|(k, v)| (k.clone(), v.clone())).collect(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => record.clone(),
    }
}

/// JSON with sorted keys and nothing between them.
fn canonical(value: &Value) -> String {
    let text = |text: &str| Value::from(text).to_string();
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<(&String, &Value)> = Map::iter(fields).collect();
            sorted.sort_by_key(|(key, _)| *key);
            let fields: Vec<String> =
                sorted.into_iter().map(|(key, value)| format!("{}:{}", text(key), canonical(value))).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(canonical).collect::<Vec<_>>().join(",")),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn signature(text: &str) -> Signature {
        Signature { certificate: text.to_owned(), signature: text.to_owned() }
    }

    #[test]
    fn signed_bytes_differ_by_cluster_key_and_content_and_not_by_signatures() {
        let record = json!({"b": [1, {"y": 2, "x": null}], "a": "text"});
        let bytes = signed_bytes("t", "file", &record);
        let signed = with_signatures(&record, &[signature("one"), signature("two")]);
        assert_eq!(signed_bytes("t", "file", &signed), bytes);
        assert_eq!(signatures_of(&signed), [signature("one"), signature("two")]);
        let again: Value = serde_json::from_str(r#"{"a":"text","b":[1,{"x":null,"y":2}]}"#).unwrap();
        assert_eq!(signed_bytes("t", "file", &again), bytes, "the order of fields says nothing");
        for other in [
            signed_bytes("u", "file", &record),
            signed_bytes("t", "operation", &record),
            signed_bytes("tfi", "le", &record),
            signed_bytes("t", "file", &json!({"b": [1, {"y": 2, "x": null}], "a": "texts"})),
            signed_bytes("t", "file", &json!({"b": [1, {"y": 2}], "a": "text"})),
        ] {
            assert_ne!(other, bytes);
        }
        assert_ne!(digest_of(&record), digest_of(&signed));
    }

    #[test]
    fn what_is_no_signature_is_none() {
        for record in
            [json!([]), json!({"signatures": 7}), json!({"signatures": [1, {"certificate": "x"}]}), json!("x")]
        {
            assert_eq!(signatures_of(&record), []);
            let _ = signed_bytes("t", "k", &with_signatures(&record, &[signature("x")]));
        }
        let many: Vec<Signature> = (0..100).map(|number| signature(&number.to_string())).collect();
        assert_eq!(signatures_of(&with_signatures(&json!({}), &many)).len(), SIGNATURES_MAX);
    }
}
