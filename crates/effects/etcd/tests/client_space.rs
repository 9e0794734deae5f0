//! A cluster that ran out of space, and the way back.

use quorate_etcd::client::messages::AlarmKind;
use quorate_etcd::client::{Client, Settings};
use quorate_faults::Code;
use quorate_testkit::{Launch, Seat, VERSIONS, etcd};
use tempfile::TempDir;

#[tokio::test]
async fn a_full_cluster_takes_writes_again_after_compacting_defragmenting_and_disarming() {
    for version in VERSIONS {
        let dir = TempDir::new().unwrap();
        let launch = Launch::new(&etcd(version), &Seat::new("n1"), &dir.path().join("data"));
        let server = launch.arg("--quota-backend-bytes=2097152").start();
        let client = Client::connect(&Settings::new([server.seat.client_url()])).await.unwrap();
        let mut writes = 0;
        let fault = loop {
            match client.put("/k", vec![7; 100_000]).await {
                Ok(_) => writes += 1,
                Err(fault) => break fault,
            }
            assert!(writes < 100, "{version}: the quota holds far less");
        };
        assert_eq!(fault.code(), Code::EtcdRefused, "{version}");
        assert!(fault.hint_text().unwrap().contains("out of space"), "{version}: {fault:?}");
        let alarms = client.alarms().await.unwrap().alarms;
        let header = client.header().await.unwrap();
        assert_eq!((alarms.len(), alarms[0].member_id, alarms[0].alarm()), (1, header.member_id, AlarmKind::NoSpace));
        client.serves().await.unwrap();

        client.compact(header.revision).await.unwrap();
        let full = client.status().await.unwrap().db_size;
        client.defragment().await.unwrap();
        let slim = client.status().await.unwrap().db_size;
        assert!(slim * 4 < full, "{version}: {slim} of {full}");
        client.put("/k", "small").await.expect_err("an alarm stays until it is cleared");
        let cleared = client.disarm(alarms[0]).await.unwrap().alarms;
        assert_eq!(cleared, alarms, "{version}");
        assert!(client.alarms().await.unwrap().alarms.is_empty(), "{version}");
        client.put("/k", vec![7; 100_000]).await.unwrap();
        assert_eq!(client.get("/k").await.unwrap().unwrap().value.len(), 100_000);
    }
}
