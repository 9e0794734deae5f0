//! Who may send which request: nodes, people with a role, and whoever may read the state dir of the agent.
//!
//! The table of routes and roles is in `docs/guide/operators.md`; a test compares it with [`right_of`].
//!
//! **Invariant:** a route that is added without a right of its own needs an administrator. The certificate of a node changes nothing on
//! another node but what that node, or a signature, allows.

use std::path::PathBuf;

use jiff::Timestamp;
use quorate_pki::{OperatorIdentity, claims_operator, identify_operator};
use quorate_plan::certificates::OperatorRole;

use super::TRIAL;
use super::server::Api;
use crate::serve::Peer;
use crate::{certificates, peering, recover, trust};

/// Who sends a request, as its connection proves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Caller {
    /// Whoever may read the state dir of this agent: root, or the user that it runs as.
    Owner,
    /// A person or machine that operates the cluster.
    Operator(OperatorIdentity),
    /// Whoever shows a certificate of the agents' authority; which node that is, if any, the certificate says.
    Certified,
    /// Whoever claims to be an operator and is none: why.
    Refused(String),
}

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Right {
    /// Any certificate of the agents' authority, or any role.
    Read,
    /// A question that is asked with a body: the certificate of a node of the cluster file, or any role.
    Query,
    /// The certificate of a node of the cluster file.
    Node,
    /// What is sent proves itself by a signature.
    Signature,
    /// A role, or the owner of the machine. Where a node has no operators' authority, the certificate of a node of its file does as well.
    Order(OperatorRole),
    /// The role `admin`, or the owner of the machine, and never the certificate of a node.
    Admin,
    /// The same, or the certificate of the node that the request is about.
    AdminOrItself,
}

/// What each route needs.
pub(crate) fn right_of(method: &str, path: &str) -> Right {
    match (method, path) {
        ("get" | "head", _) => Right::Read,
        (_, TRIAL | recover::REMAINS | recover::PROBE) => Right::Query,
        (_, "/v1/started" | certificates::PATH | peering::KEYS | peering::VETO) => Right::Node,
        (_, "/v1/file" | trust::PATH) => Right::Signature,
        (_, "/v1/intent" | "/v1/hand-over" | "/v1/restart" | recover::SPOOL) => Right::Order(OperatorRole::Operator),
        (_, peering::INVITE | peering::APPROVE | peering::COUNTERSIGN | peering::ROLE) => Right::Admin,
        (_, peering::DETACH) => Right::AdminOrItself,
        _ => Right::Order(OperatorRole::Admin),
    }
}

/// How a caller stands to a right; what only a node of the file may do is decided by its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Standing {
    Granted,
    /// Only as a node of the cluster file.
    AsNode,
    /// Only for the node itself.
    AsItself,
    Refused(String),
}

/// Decides. `has_operators`: whether this node has the operators' authority.
pub(super) fn standing(caller: &Caller, right: Right, has_operators: bool) -> Standing {
    let lacks = |role: OperatorRole| {
        let how = "or run the command on that machine, as root or as the user of its agent";
        Standing::Refused(format!("the request needs the certificate of an operator with role `{role}`, {how}"))
    };
    match (caller, right) {
        (Caller::Refused(why), _) => {
            Standing::Refused(format!("the certificate of an operator counts for nothing: {why}"))
        }
        // Ownership of a machine does not make a caller another node; agents in clear text prove nothing else.
        (Caller::Owner, Right::Node) => Standing::AsNode,
        (Caller::Owner, _) | (_, Right::Read) | (Caller::Operator(_), Right::Query | Right::Signature) => {
            Standing::Granted
        }
        (Caller::Operator(_), Right::Node) => Standing::Refused("only a node sends such a request".to_owned()),
        (Caller::Operator(identity), Right::Order(role)) if identity.role >= role => Standing::Granted,
        (Caller::Operator(identity), Right::Admin | Right::AdminOrItself) if identity.role >= OperatorRole::Admin => {
            Standing::Granted
        }
        (Caller::Operator(_), Right::Order(role)) => lacks(role),
        (Caller::Operator(_), Right::Admin | Right::AdminOrItself) => lacks(OperatorRole::Admin),
        (Caller::Certified, Right::Node | Right::Query | Right::Signature) => Standing::AsNode,
        (Caller::Certified, Right::Order(role)) if has_operators => lacks(role),
        (Caller::Certified, Right::Order(_)) => Standing::AsNode,
        (Caller::Certified, Right::Admin) => lacks(OperatorRole::Admin),
        (Caller::Certified, Right::AdminOrItself) => Standing::AsItself,
    }
}

/// The operators' authority of this node, where it has one.
pub(crate) fn operators_file(api: &Api) -> Option<PathBuf> {
    let path = PathBuf::from(api.node.spec.operators_file_of(api.node.name())?);
    path.exists().then_some(path)
}

/// Who sends a request. `owner`: whether it proved that it may read the state dir.
pub(super) async fn identify(api: &Api, peer: Option<&Peer>, owner: bool) -> Caller {
    if owner || api.node.spec.is_plaintext() {
        return Caller::Owner;
    }
    let token = api.node.spec.token.clone();
    let claims = peer.and_then(Peer::certificate).filter(|der| claims_operator(der, &token));
    let Some(der) = claims.map(<[u8]>::to_vec) else { return Caller::Certified };
    let Some(authority) = api.node.spec.operators_file_of(api.node.name()) else {
        return Caller::Refused("this node has no operators' authority".to_owned());
    };
    let identified = tokio::task::spawn_blocking(move || {
        identify_operator(&der, &token, &PathBuf::from(authority), Timestamp::now())
    });
    match identified.await {
        Ok(Ok(identity)) => Caller::Operator(identity),
        Ok(Err(why)) => Caller::Refused(why),
        Err(_) => Caller::Refused("it could not be checked".to_owned()),
    }
}

/// The table of routes and roles, as the guide has it.
#[cfg(test)]
pub(super) fn table() -> String {
    let callers: Vec<(&str, Caller)> = [("node", Caller::Certified)]
        .into_iter()
        .chain(OperatorRole::ALL.map(|role| {
            let identity = OperatorIdentity { name: "alice".to_owned(), role, serial: "1".to_owned() };
            (role.word(), Caller::Operator(identity))
        }))
        .chain([("owner", Caller::Owner)])
        .collect();
    let names: Vec<&str> = callers.iter().map(|(name, _)| *name).collect();
    let mut text = format!("| request | {} |\n| --- |{}\n", names.join(" | "), " --- |".repeat(names.len()));
    for (method, path, _) in super::openapi::ROUTES {
        let right = right_of(method, path);
        let cells: Vec<&str> = callers
            .iter()
            .map(|(name, caller)| match (standing(caller, right, true), right) {
                (_, Right::Node) if *name == "owner" => "no",
                (_, Right::Signature) if *name == "owner" && path == "/v1/file" => "yes",
                (Standing::Granted | Standing::AsNode, Right::Signature) => "signature",
                (Standing::Granted | Standing::AsNode, _) => "yes",
                (Standing::AsItself, _) => "itself",
                (Standing::Refused(_), _) => "no",
            })
            .collect();
        text.push_str(&format!("| {} {path} | {} |\n", method.to_uppercase(), cells.join(" | ")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator(role: OperatorRole) -> Caller {
        Caller::Operator(OperatorIdentity { name: "alice".to_owned(), role, serial: "1".to_owned() })
    }

    #[test]
    fn the_guide_has_this_table() {
        let guide = include_str!("../../../../../docs/guide/operators.md");
        assert!(guide.contains(&table()), "docs/guide/operators.md lacks this table:\n{}", table());
    }

    #[test]
    fn a_node_gives_no_orders_where_operators_are_known() {
        for role in OperatorRole::ALL {
            assert!(matches!(standing(&Caller::Certified, Right::Order(role), true), Standing::Refused(_)));
            assert_eq!(standing(&Caller::Certified, Right::Order(role), false), Standing::AsNode);
        }
        for known in [true, false] {
            assert!(matches!(standing(&Caller::Certified, Right::Admin, known), Standing::Refused(_)));
            assert_eq!(standing(&Caller::Certified, Right::AdminOrItself, known), Standing::AsItself);
        }
    }

    #[test]
    fn a_role_includes_those_before_it_and_is_no_node() {
        let needs = Right::Order(OperatorRole::Operator);
        assert!(matches!(standing(&operator(OperatorRole::Viewer), needs, true), Standing::Refused(_)));
        assert_eq!(standing(&operator(OperatorRole::Operator), needs, true), Standing::Granted);
        assert_eq!(standing(&operator(OperatorRole::Admin), needs, true), Standing::Granted);
        for role in OperatorRole::ALL {
            assert!(matches!(standing(&operator(role), Right::Node, true), Standing::Refused(_)));
            assert_eq!(standing(&operator(role), Right::Read, true), Standing::Granted);
        }
    }

    #[test]
    fn a_false_operator_does_not_even_read_and_an_unknown_route_needs_an_administrator() {
        let refused = Caller::Refused("it is revoked".to_owned());
        assert!(matches!(standing(&refused, Right::Read, true), Standing::Refused(_)));
        assert_eq!(right_of("post", "/v1/some-day"), Right::Order(OperatorRole::Admin));
    }
}
