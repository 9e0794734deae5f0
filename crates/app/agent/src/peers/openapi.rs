//! The description of the agents' API, for machines: OpenAPI 3.1.
//!
//! **Invariant:** every route is in it, and every path in it is a route; a test compares both.

use serde_json::{Value, json};

/// The paths, as `(method, path, summary)`.
pub(super) const ROUTES: [(&str, &str, &str); 25] = [
    ("get", "/v1/node", "What a node tells of itself: how far its founding has come, what it remembers of others"),
    (
        "post",
        "/v1/started",
        "Writes down durably that the node that asks is about to start; answers once that is on disk",
    ),
    ("get", "/v1/status", "The status document of the node's agent"),
    ("get", "/v1/plan", "What the node's agent decided last, and why"),
    ("get", "/v1/file", "The text of the cluster file that the node acts on"),
    (
        "put",
        "/v1/file",
        "Takes another cluster file over, in the place of the one that it names; answers once it is on disk",
    ),
    (
        "post",
        super::TRIAL,
        "What another cluster file would mean for the node: whether it would take it, and why its etcd would restart",
    ),
    ("post", "/v1/intent", "Writes down what the node is to become: whether it leaves the cluster"),
    ("post", "/v1/hand-over", "Hands leadership to another member, where the node's member leads"),
    ("post", "/v1/restart", "Has an etcd that was taken over restarted with the settings of the file, in its turn"),
    ("post", "/v1/certificates", "Signs certificates for the node that asks, where the issuing keys are here"),
    (
        "post",
        "/v1/trust",
        "Changes which authorities, certificates and lists of revoked ones hold, and tells what the node trusts",
    ),
    ("post", "/v1/remains", "What is left on the node: how far its data reaches, from its etcd or from its files"),
    ("post", "/v1/probe", "Queries the etcd of members whose agents are silent, and watches the store of backups"),
    ("post", "/v1/spool", "Uploads the writes that wait in the node's spool into the store of backups"),
    ("post", "/v1/recover", "Orders a recovery, durably, or tells how far the one that was ordered is"),
    ("get", "/v1/peers", "Who belongs to a cluster by hand, and what is being changed"),
    ("post", "/v1/invite", "Makes a join code: whoever has it may join, once and in its time"),
    (
        "post",
        "/v1/peers/approve",
        "Lets a node that was invited and waits become a server; for the operator of this very node",
    ),
    ("post", "/v1/detach", "Begins to take a node out of a cluster by hand, after every check"),
    ("post", "/v1/issuing-keys", "Hands the issuing keys to another server of a cluster by hand, once it votes"),
    ("post", "/v1/veto", "Asks what runs on the node whether it objects to a change of peers"),
    (
        "post",
        "/v1/countersign",
        "Approves, as a second server, that a node becomes a server of a cluster by hand; for the node's own operator",
    ),
    ("post", "/v1/role", "Begins to make a client of a server in a cluster by hand, or a server of a client"),
    ("get", "/openapi.json", "This description"),
];

/// The document.
pub(super) fn document() -> Value {
    let mut paths = serde_json::Map::new();
    for (method, path, summary) in ROUTES {
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[method] = operation(method, path, summary);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Quorate agent",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Served over mutual TLS: only with a certificate of the agents' authority. With `plaintext: true` served on loopback alone: every request and every response proves the token in `agent.token` of the agent's state dir by an HMAC in `quorate-proof`."
        },
        "paths": paths,
        "components": { "schemas": schemas() }
    })
}

fn operation(method: &str, path: &str, summary: &str) -> Value {
    let header = |name: &str, what: &str| json!({ "name": name, "in": "header", "required": true, "description": what, "schema": { "type": "string" } });
    let schema = |name: &str| json!({ "schema": { "$ref": format!("#/components/schemas/{name}") } });
    let answer = match path {
        "/v1/node" => schema("Node"),
        "/v1/started" => schema("StartedAnswer"),
        "/v1/status" => schema("Status"),
        "/v1/plan" => schema("Plan"),
        "/v1/certificates" => schema("CertificatesAnswer"),
        "/v1/trust" => schema("TrustAnswer"),
        "/v1/remains" => schema("Remains"),
        "/v1/probe" => schema("ProbeAnswer"),
        "/v1/spool" => schema("Uploaded"),
        "/v1/recover" => schema("Recovery"),
        "/v1/file" if method == "get" => schema("FileTold"),
        "/v1/file" => schema("FileAnswer"),
        super::TRIAL => schema("FileTried"),
        "/v1/intent" => schema("IntentAnswer"),
        "/v1/hand-over" => schema("HandOverAnswer"),
        "/v1/restart" => schema("RestartAnswer"),
        "/v1/peers" => schema("Peers"),
        "/v1/invite" => schema("InviteAnswer"),
        "/v1/peers/approve" => schema("WaitingNode"),
        "/v1/detach" | "/v1/role" => schema("Operation"),
        "/v1/issuing-keys" => schema("IssuingKeys"),
        "/v1/veto" => schema("VetoAnswer"),
        _ => json!({ "schema": { "type": "object" } }),
    };
    let refused = json!({ "description": "No, and why", "content": { "application/json": schema("Refusal") } });
    let mut operation = json!({
        "summary": summary,
        "parameters": [
            header(super::CLUSTER_HEADER, "The token of the cluster file"),
            header(super::GENERATION_HEADER, "The generation of who asks; `none` to look, and where it holds nothing"),
            header(super::FROM_HEADER, "The member that asks, or `operator`"),
        ],
        "responses": {
            "200": { "description": "The answer", "content": { "application/json": answer } },
            "400": refused, "401": refused, "403": refused, "409": refused, "503": refused
        }
    });
    let body = match path {
        "/v1/started" => Some("StartedRequest"),
        "/v1/certificates" => Some("CertificatesRequest"),
        "/v1/trust" => Some("TrustRequest"),
        "/v1/probe" => Some("ProbeRequest"),
        "/v1/recover" => Some("RecoveryOrder"),
        "/v1/file" if method == "put" => Some("FileRequest"),
        super::TRIAL => Some("FileTrial"),
        "/v1/intent" => Some("IntentRequest"),
        "/v1/invite" => Some("InviteRequest"),
        "/v1/peers/approve" => Some("ApproveRequest"),
        "/v1/detach" => Some("DetachRequest"),
        "/v1/veto" => Some("VetoRequest"),
        "/v1/role" => Some("RoleRequest"),
        _ => None,
    };
    if let (Some(body), Some(map)) = (body, operation.as_object_mut()) {
        let content = json!({ "application/json": schema(body) });
        map.insert("requestBody".to_owned(), json!({ "required": true, "content": content }));
    }
    operation
}

fn schemas() -> Value {
    let text = json!({ "type": "string" });
    let number = json!({ "type": "integer", "minimum": 0 });
    let id = json!({ "type": "string", "pattern": "^[0-9a-f]{1,16}$" });
    let object = |required: &[&str], properties: Value| json!({ "type": "object", "required": required, "properties": properties });
    let start = object(
        &["number", "nonce", "series"],
        json!({
            "number": number, "nonce": number, "series": number, "from": number
        }),
    );
    let rolled_back = object(&["member", "seen", "last"], json!({ "member": id, "seen": number, "last": number }));
    json!({
        "Node": object(&["name", "generation", "declaration", "file", "founding", "phase"], json!({
            "name": text, "generation": number, "generation_of": id, "declaration": text, "file": text,
            "founding": object(&["state"], json!({
                "state": { "enum": ["nothing", "promised", "founded", "removed"] }, "cluster": id, "member": id,
                "bootstrap": number, "declaration": text
            })),
            "member": id,
            "consumed": { "type": "array", "items": number },
            "dropped": { "type": "array", "items": number },
            "peers": { "type": "object", "additionalProperties": object(&["started"], json!({
                "started": { "type": "boolean" }, "member": id, "tombstone": { "type": "boolean" }
            })) },
            "confirmed": { "type": "object" },
            "acknowledged": { "type": "array", "items": object(&["member", "index"], json!({
                "member": id, "index": number, "term": number, "start": start, "rolled_back": rolled_back
            })) },
            "start": start,
            "phase": text,
            "leads": { "type": "boolean" },
            "upkeep": { "enum": ["none", "wanted", "running"] },
            "stage": { "enum": ["blank", "joining", "member", "removed"] },
            "etcd": text, "storage": text, "v2_entries": number,
            "log": object(&["snapshot", "last"], json!({ "snapshot": number, "last": number })), "settled": { "type": "boolean" },
            "restart": object(&["why"], json!({ "why": text, "release": text })),
            "intent": object(&["kind"], json!({ "kind": text, "why": text, "at_ms": number })),
            "backed_up_ms": number, "stored_revision": number, "since_revision": number,
            "differing": { "type": "array", "items": id },
            "role": { "enum": ["standalone", "server", "client", "external", "detached"] },
            "clock_ms": number,
            "instance": text, "machine": text, "sees": { "type": "array", "items": id }, "nonce": text, "seal": {}
        })),
        "StartedRequest": object(&["name", "cluster", "member"], json!({
            "name": text, "cluster": id, "member": id, "declaration": text
        })),
        "StartedAnswer": object(&["recorded"], json!({ "recorded": { "const": true } })),
        "Status": object(&["name", "token", "phase", "cause", "ledger"], json!({
            "name": text, "token": text, "phase": text, "cause": text, "ledger": text
        })),
        "Plan": object(&["name", "because", "steps"], json!({
            "name": text, "because": text, "steps": { "type": "array", "items": text },
            "waiting": { "type": "boolean" }, "refused": { "type": "boolean" }, "file": text
        })),
        "CertificatesRequest": object(&["requests", "days"], json!({ "requests": text, "days": number })),
        "FileTold": object(&["text", "file"], json!({ "text": text, "file": text })),
        "FileRequest": object(&["text", "replaces"], json!({ "text": text, "replaces": text })),
        "FileAnswer": object(&["file"], json!({ "file": text, "kept": text, "leaves": { "type": "boolean" } })),
        "FileTrial": object(&["text"], json!({ "text": text })),
        "FileTried": object(&["leaves"], json!({
            "restart": object(&["why"], json!({ "why": text, "release": text })), "leaves": { "type": "boolean" }
        })),
        "IntentRequest": object(&["why"], json!({ "intent": { "enum": ["leave", "teardown", null] }, "why": text })),
        "IntentAnswer": object(&[], json!({ "intent": { "type": ["object", "null"] } })),
        "HandOverAnswer": object(&[], json!({ "to": id })),
        "RestartAnswer": object(&["waits"], json!({ "waits": { "type": "boolean" } })),
        "CertificatesAnswer": object(&["certificates"], json!({ "certificates": text })),
        "TrustRequest": object(&[], json!({
            "order": { "type": "object" }, "certificates": text, "lists": { "type": "object" },
            "wants_requests": { "type": "boolean" }
        })),
        "TrustAnswer": object(&["name", "seen"], json!({
            "name": text, "seen": { "type": "object" }, "etcd_current": { "type": "boolean" }, "requests": text
        })),
        "Remains": object(&["name", "generation", "seen"], json!({
            "name": text, "generation": { "type": ["integer", "null"] }, "outdated_by": number,
            "seen": object(&["state"], json!({ "state": { "enum": ["absent", "damaged", "unknown", "there"] }, "why": text })),
            "recovery": { "type": "object" }
        })),
        "ProbeRequest": object(&["members"], json!({ "members": { "type": "array", "items": text } })),
        "ProbeAnswer": object(&["probes"], json!({
            "probes": { "type": "array", "items": object(&["from", "member", "reply"], json!({
                "from": text, "member": text, "reply": { "type": "object" }
            })) },
            "store": { "type": "object" }
        })),
        "Uploaded": object(&[], json!({ "first": number, "last": number })),
        "RecoveryOrder": object(&["generation", "nonce", "role", "asked_by"], json!({
            "generation": number, "nonce": number, "role": {}, "asked_by": text
        })),
        "Recovery": object(&["order", "progress"], json!({
            "order": { "type": "object" }, "progress": object(&["state"], json!({ "state": text }))
        })),
        "Peers": object(&["name", "role", "cluster", "nodes", "invitations"], json!({
            "name": text, "role": text, "cluster": text, "invitations": number, "issuing": text, "unread": text,
            "nodes": { "type": "array", "items": object(&["name", "role", "agent", "state", "answers"], json!({
                "name": text, "role": text, "agent": text, "state": text, "answers": { "type": "boolean" }, "since_ms": number
            })) },
            "operation": { "$ref": "#/components/schemas/Operation" },
            "waiting": { "type": "array", "items": { "$ref": "#/components/schemas/WaitingNode" } }
        })),
        "Operation": object(&["id", "kind", "name", "step"], json!({
            "id": text, "kind": { "enum": ["join", "detach", "to-client", "to-server"] }, "name": text, "by": text, "waits": { "type": ["string", "null"] },
            "step": { "enum": ["reserved", "given", "undoing", "joined", "undone", "detached", "changed"] }
        })),
        "InviteRequest": object(&["role", "ttl_ms"], json!({ "role": text, "ttl_ms": number, "address": { "type": ["string", "null"] },
            "for_name": text, "for_address": text, "short": { "type": "boolean" }, "secret": { "type": "boolean" } })),
        "InviteAnswer": object(&["code", "expires_ms"], json!({ "code": text, "expires_ms": number, "secret": text, "address": text,
            "for_name": text, "for_address": text, "short": { "type": "boolean" } })),
        "ApproveRequest": object(&["name", "fingerprint"], json!({ "name": text, "fingerprint": text })),
        "WaitingNode": object(&["name", "address", "role", "fingerprint", "from", "since_ms"], json!({
            "name": text, "address": text, "role": text, "fingerprint": text, "from": text, "since_ms": number })),
        "DetachRequest": object(&["name", "force"], json!({ "name": text, "force": { "type": "boolean" } })),
        "RoleRequest": object(&["name", "role"], json!({ "name": text, "role": { "enum": ["server", "client"] } })),
        "VetoRequest": object(&["what", "name"], json!({ "what": { "enum": ["join", "detach", "to-client", "to-server"] }, "name": text })),
        "IssuingKeys": { "type": "object", "additionalProperties": text },
        "VetoAnswer": object(&[], json!({ "objection": { "type": ["string", "null"] } })),
        "Refusal": object(&["code", "why"], json!({ "code": text, "why": text, "generation": number, "generation_of": id }))
    })
}
