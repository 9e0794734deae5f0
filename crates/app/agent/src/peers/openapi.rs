//! The description of the agents' API, for machines: OpenAPI 3.1.
//!
//! **Invariant:** every route is in it, and every path in it is a route; a test compares both.

use serde_json::{Value, json};

/// The paths, as `(method, path, summary)`.
pub(super) const ROUTES: [(&str, &str, &str); 6] = [
    ("get", "/v1/node", "What a node tells of itself: how far its founding has come, what it remembers of others"),
    (
        "post",
        "/v1/started",
        "Writes down durably that the node that asks is about to start; answers once that is on disk",
    ),
    ("get", "/v1/status", "The status document of the node's agent"),
    ("get", "/v1/plan", "What the node's agent decided last, and why"),
    ("post", "/v1/certificates", "Signs certificates for the node that asks, where the issuing keys are here"),
    ("get", "/openapi.json", "This description"),
];

/// The document.
pub(super) fn document() -> Value {
    let mut paths = serde_json::Map::new();
    for (method, path, summary) in ROUTES {
        paths.insert(path.to_owned(), json!({ method: operation(path, summary) }));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Quorate agent",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Served over mutual TLS: only with a certificate of the agents' authority."
        },
        "paths": paths,
        "components": { "schemas": schemas() }
    })
}

fn operation(path: &str, summary: &str) -> Value {
    let header = |name: &str, what: &str| json!({ "name": name, "in": "header", "required": true, "description": what, "schema": { "type": "string" } });
    let schema = |name: &str| json!({ "schema": { "$ref": format!("#/components/schemas/{name}") } });
    let answer = match path {
        "/v1/node" => schema("Node"),
        "/v1/started" => schema("StartedAnswer"),
        "/v1/status" => schema("Status"),
        "/v1/plan" => schema("Plan"),
        "/v1/certificates" => schema("CertificatesAnswer"),
        _ => json!({ "schema": { "type": "object" } }),
    };
    let refused = json!({ "description": "No, and why", "content": { "application/json": schema("Refusal") } });
    let mut operation = json!({
        "summary": summary,
        "parameters": [
            header(super::CLUSTER_HEADER, "The token of the cluster file"),
            header(super::GENERATION_HEADER, "The generation of who asks; `none` where it holds nothing"),
            header(super::FROM_HEADER, "The member that asks, or `operator`"),
        ],
        "responses": {
            "200": { "description": "The answer", "content": { "application/json": answer } },
            "400": refused, "409": refused, "503": refused
        }
    });
    let body = match path {
        "/v1/started" => Some("StartedRequest"),
        "/v1/certificates" => Some("CertificatesRequest"),
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
    json!({
        "Node": object(&["name", "generation", "declaration", "file", "founding", "phase"], json!({
            "name": text, "generation": number, "declaration": text, "file": text,
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
            "acknowledged": { "type": "array", "items": object(&["member", "index"], json!({ "member": id, "index": number })) },
            "phase": text,
            "leads": { "type": "boolean" },
            "upkeep": { "enum": ["none", "wanted", "running"] }
        })),
        "StartedRequest": object(&["name", "cluster", "member"], json!({ "name": text, "cluster": id, "member": id })),
        "StartedAnswer": object(&["recorded"], json!({ "recorded": { "const": true } })),
        "Status": object(&["name", "token", "phase", "cause", "ledger"], json!({
            "name": text, "token": text, "phase": text, "cause": text, "ledger": text
        })),
        "Plan": object(&["name", "because", "steps"], json!({
            "name": text, "because": text, "steps": { "type": "array", "items": text },
            "waiting": { "type": "boolean" }, "refused": { "type": "boolean" }, "file": text
        })),
        "CertificatesRequest": object(&["requests", "days"], json!({ "requests": text, "days": number })),
        "CertificatesAnswer": object(&["certificates"], json!({ "certificates": text })),
        "Refusal": object(&["code", "why"], json!({ "code": text, "why": text, "generation": number }))
    })
}
