//! What Prometheus is told about the proxy.

use std::sync::{PoisonError, RwLock};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use quorate_plan::peering::Upstream;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMember {
    member: String,
}

/// All of them. Clones count together.
#[derive(Debug, Clone, Default)]
pub(super) struct Measures {
    open: Family<OfMember, Gauge>,
    opened: Family<OfMember, Counter>,
    refused: Family<OfMember, Counter>,
    healthy: Family<OfMember, Gauge>,
    rtt_us: Family<OfMember, Gauge>,
    failed: Counter,
    drained: Counter,
    client: Gauge,
    to_members: Counter,
    to_clients: Counter,
}

impl Measures {
    pub(super) fn register(&self, registry: &RwLock<Registry>) {
        let mut registry = registry.write().unwrap_or_else(PoisonError::into_inner);
        registry.register("quorate_client", "1 while this node is a client of the cluster", self.client.clone());
        registry.register("quorate_proxy_open", "Connections that a member carries", self.open.clone());
        registry.register("quorate_proxy_opened", "Connections that a member took", self.opened.clone());
        registry.register("quorate_proxy_refused", "Connections that a member did not take", self.refused.clone());
        registry.register("quorate_proxy_failed", "Connections that no member took", self.failed.clone());
        let help = "Connections that were closed because their member was ill or gone";
        registry.register("quorate_proxy_drained", help, self.drained.clone());
        registry.register("quorate_proxy_member_healthy", "1 for members that are used", self.healthy.clone());
        let help = "How long a member takes to answer, in microseconds";
        registry.register("quorate_proxy_member_rtt_microseconds", help, self.rtt_us.clone());
        let (up, down) = (self.to_members.clone(), self.to_clients.clone());
        registry.register_with_unit("quorate_proxy_to_members", "Bytes that went to members", Unit::Bytes, up);
        registry.register_with_unit("quorate_proxy_to_clients", "Bytes that went to clients", Unit::Bytes, down);
    }

    pub(super) fn members(&self, members: &[Upstream]) {
        self.healthy.clear();
        self.rtt_us.clear();
        for member in members {
            let label = OfMember { member: member.name.clone() };
            self.healthy.get_or_create(&label).set(i64::from(member.healthy));
            if let Some(rtt) = member.rtt_us {
                self.rtt_us.get_or_create(&label).set(i64::from(rtt));
            }
        }
    }

    pub(super) fn opened(&self, member: &str) {
        let label = OfMember { member: member.to_owned() };
        self.open.get_or_create(&label).inc();
        self.opened.get_or_create(&label).inc();
    }

    pub(super) fn closed(&self, member: &str) {
        self.open.get_or_create(&OfMember { member: member.to_owned() }).dec();
    }

    pub(super) fn refused(&self, member: &str) {
        self.refused.get_or_create(&OfMember { member: member.to_owned() }).inc();
    }

    pub(super) fn client(&self, is_one: bool) {
        self.client.set(i64::from(is_one));
    }

    pub(super) fn failed(&self) {
        self.failed.inc();
    }

    pub(super) fn drained(&self) {
        self.drained.inc();
    }

    pub(super) fn up(&self, bytes: u64) {
        self.to_members.inc_by(bytes);
    }

    pub(super) fn down(&self, bytes: u64) {
        self.to_clients.inc_by(bytes);
    }
}
