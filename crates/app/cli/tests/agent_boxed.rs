//! etcd in its box below an agent: strict and as a user of its own below root, basic below a normal user, refused where it cannot be.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod agent_support;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_support::Place;
use quorate_testkit::{Running, copy_program, project_root, quorate, wait_until};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Where a process is in the hierarchies of control groups, if one of them is a box's.
fn groups(pid: u32) -> Vec<PathBuf> {
    let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let tops: Vec<&str> =
        mounts.lines().filter(|line| line.contains(" cgroup")).map(|l| l.split(' ').nth(1).unwrap()).collect();
    let boxed = own.lines().filter_map(|line| line.splitn(3, ':').nth(2)).filter(|path| path.contains("quorate-box-"));
    let all = boxed.flat_map(|path| tops.iter().map(move |top| Path::new(top).join(path.trim_start_matches('/'))));
    all.filter(|path| path.is_dir()).collect()
}

fn serves_in_strict(version: &str) {
    let place = Place::new(version);
    if !is_root() {
        return refused_to_a_normal_user(place);
    }
    let mut agent = place.start();
    let (pid, status) = (place.etcd_pid(), place.status());
    assert_eq!((&status["etcd"]["box"], &status["etcd"]["adopted"]), (&"strict".into(), &false.into()), "{status}");
    let row = &place.json(&["ps"])["processes"][0];
    assert_eq!(row["box"], "strict", "{row}");
    let uid = row["confinement"]["uid"].as_u64().unwrap();
    assert_ne!(uid, 0, "{row}");
    // Its files are its user's, its settings are readable to it and writable to us alone.
    for path in [place.data(), place.data().join("member/snap/db")] {
        assert_eq!(u64::from(path.metadata().unwrap().uid()), uid, "{}", path.display());
    }
    let config = place.state().join("etcd.yaml").metadata().unwrap();
    assert_eq!((config.uid(), u64::from(config.gid()), config.mode() & 0o777), (0, uid, 0o640));
    assert_eq!(place.state().metadata().unwrap().mode() & 0o777, 0o700);
    place.put("k", "v");
    let groups = groups(pid);
    assert!(!groups.is_empty(), "it has a limit of threads");
    // It outlives its agent, and the next one knows its box.
    agent.kill();
    let mut agent = place.start();
    let status = place.status();
    assert_eq!((place.etcd_pid(), &status["etcd"]["box"]), (pid, &"strict".into()), "{status}");
    assert_eq!((&status["etcd"]["adopted"], &status["etcd"]["settings_current"]), (&true.into(), &true.into()));
    place.assert_holds("k", "v");
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert_eq!(groups.iter().filter(|path| path.is_dir()).collect::<Vec<_>>(), Vec::<&PathBuf>::new());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&place.root.path().display().to_string()), "{mounts}");
    // What the agent does to the data between two starts belongs to root, until etcd starts.
    let db = place.data().join("member/snap/db");
    std::os::unix::fs::chown(&db, Some(0), Some(0)).unwrap();
    let mut agent = place.start();
    assert_eq!(u64::from(db.metadata().unwrap().uid()), uid);
    place.assert_holds("k", "v");
    assert!(agent.stop().success(), "{}", agent.log());
}

fn refused_to_a_normal_user(mut place: Place) {
    place.more = "box: {level: strict}\n".to_owned();
    let mut agent = place.run(&[]);
    assert_eq!(place.wait_phase("refused")["code"], "Q1106");
    assert!(agent.stop().success());
}

#[test]
fn etcd_3_4_serves_in_a_strict_box() {
    serves_in_strict("3.4.23");
}

#[test]
fn etcd_3_5_serves_in_a_strict_box() {
    serves_in_strict("3.5.16");
}

#[test]
fn the_newest_etcd_serves_in_a_strict_box() {
    serves_in_strict("sid");
}

#[test]
fn no_box_is_a_choice_and_another_one_comes_with_the_next_start() {
    let mut place = Place::new("3.5.16");
    place.more = "box: {level: off}\n".to_owned();
    let mut agent = place.start();
    let (pid, status) = (place.etcd_pid(), place.status());
    assert_eq!(status["etcd"]["box"], "off", "{status}");
    assert_eq!(place.json(&["ps"])["processes"][0]["box"], "off");
    agent.kill();
    // The file changes: that it differs is said, and etcd is started again in its turn.
    place.more = "box: {level: basic, limits: {open-files: 5000}}\n".to_owned();
    let mut agent = place.start();
    wait_until("etcd runs in the other box", LIMIT, || {
        let status = place.status();
        let fits = status["etcd"]["box"] == "basic" && status["etcd"]["settings_current"] == true;
        fits && status["phase"] == "serving" && !status["warnings"].to_string().contains("Q1109")
    });
    assert_ne!(place.etcd_pid(), pid);
    assert!(agent.log().contains("its next start will have `basic`"), "{}", agent.log());
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", place.etcd_pid())).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max open files") && line.contains(" 5000 ")), "{limits}");
    assert!(agent.stop().success());
}

/// An agent that is root by its number, and not by all of its rights.
fn with_rights(place: &Place, rights: &str) -> Running {
    let file = place.file().display().to_string();
    let words =
        ["--no-new-privs", "--bounding-set", rights, "--", &quorate().display().to_string(), "run", "--config", &file];
    let args: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    Running::start(Path::new("/usr/bin/setpriv"), &args, &place.env)
}

fn without_rights(place: &Place) -> Running {
    with_rights(place, "-sys_admin")
}

#[test]
fn the_rights_that_the_strict_unit_leaves_are_enough_for_a_whole_life() {
    let place = Place::new("3.5.16");
    if !is_root() {
        return refused_to_a_normal_user(place);
    }
    let unit = project_root().join("deploy/systemd/quorate@.service.d/strict.conf");
    let unit = std::fs::read_to_string(unit).unwrap();
    let lines = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let names: Vec<String> = lines.flat_map(str::split_whitespace).map(|name| name.replace("CAP_", "+")).collect();
    let rights = format!("-all,{}", names.join(",").to_lowercase());
    let mut agent = with_rights(&place, &rights);
    place.wait_ready(&mut agent);
    let status = place.status();
    assert_eq!(status["etcd"]["box"], "strict", "{status}");
    let (pid, groups) = (place.etcd_pid(), groups(place.etcd_pid()));
    place.put("k", "v");
    // Killed and started anew, it takes etcd over, and stops it.
    agent.kill();
    let mut agent = with_rights(&place, &rights);
    place.wait_ready(&mut agent);
    assert_eq!((place.etcd_pid(), &place.status()["etcd"]["adopted"]), (pid, &true.into()));
    assert!(agent.stop().success(), "{}", agent.log());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(!groups.is_empty() && groups.iter().all(|path| !path.is_dir()), "{groups:?}");
}

#[test]
fn a_box_that_cannot_be_had_is_no_start_and_says_how_to_lower_it() {
    let mut place = Place::new("3.5.16");
    if !is_root() {
        return refused_to_a_normal_user(place);
    }
    let mut agent = without_rights(&place);
    let status = place.wait_phase("refused");
    assert_eq!(status["code"], "Q1106", "{status}");
    let (cause, way_out) = (status["cause"].to_string(), status["way_out"].to_string());
    assert!(cause.contains("a strict box cannot be had here; it lacks: user"), "{cause}");
    assert!(way_out.contains("`box: {level: basic}`"), "{way_out}");
    // As soon as the file is mended, the same agent tries again.
    place.more = "box: {level: basic}\n".to_owned();
    place.file();
    place.wait_ready(&mut agent);
    assert_eq!(place.status()["etcd"]["box"], "basic");
    place.put("k", "v");
    assert!(agent.stop().success());
}

#[test]
fn etcd_has_copies_of_its_keys_and_the_files_themselves_stay_closed() {
    let mut place = Place::new("3.5.16");
    if !is_root() {
        return refused_to_a_normal_user(place);
    }
    let pki = place.path("pki");
    std::fs::create_dir(&pki).unwrap();
    certificates(&pki);
    let key = |name: &str| pki.join(name);
    for name in ["peer.key", "client.key", "other.key"] {
        std::fs::set_permissions(key(name), std::fs::Permissions::from_mode(0o600)).unwrap();
    }
    std::fs::set_permissions(&pki, std::fs::Permissions::from_mode(0o700)).unwrap();
    // A key that another group has is left to it, too.
    std::os::unix::fs::chown(key("client.key"), Some(0), Some(7)).unwrap();
    place.raw = Some(secure(&place, &pki));
    let mut agent = place.start();
    let modes = |path: &Path| {
        let meta = path.metadata().unwrap();
        (meta.uid() != 0, meta.gid(), meta.mode() & 0o777)
    };
    assert_eq!(modes(&key("peer.key")), (false, 0, 0o600));
    assert_eq!(modes(&key("client.key")), (false, 7, 0o600));
    assert_eq!(modes(&key("other.key")), (false, 0, 0o600));
    assert_eq!(modes(&pki), (false, 0, 0o700));
    let copies = place.path("state/n1/etcd-tls");
    for name in ["peer.key", "peer.crt", "peer-ca.crt", "client.key", "client.crt", "client-ca.crt"] {
        let (of_etcd, _, mode) = modes(&copies.join(name));
        assert_eq!((of_etcd, mode), (true, 0o400), "{name}");
    }
    assert_eq!(std::fs::read_dir(&copies).unwrap().count(), 6, "nothing else is in its box");
    let warned = place.status()["warnings"].to_string();
    assert!(!warned.contains("Q1110") && !warned.contains("Q1109"), "{warned}");
    assert!(agent.stop().success());
}

fn secure(place: &Place, pki: &Path) -> String {
    let dir = pki.display();
    let files = |which: &str| {
        format!("{{cert-file: {dir}/{which}.crt, key-file: {dir}/{which}.key, trusted-ca-file: {dir}/ca.crt}}")
    };
    format!(
        "token: t\nbootstrap: {{id: 1}}\ntls: {{peer: {}, client: {}}}\nmembers:\n  - {{name: n1, peer-urls: [\"{}\"], client-urls: \
         [\"{}\"], data-dir: {}}}\nagent:\n  health-listen: http://127.0.0.1:{}\n  api-listen: https://127.0.0.1:{}\n  state-dir: \
         {}\n  etcd-binary: {}\n",
        files("peer"),
        files("client"),
        place.seat.peer_url().replace("http:", "https:"),
        place.seat.client_url().replace("http:", "https:"),
        place.data().display(),
        place.health,
        place.api,
        place.path("state").display(),
        place.binary.display(),
    )
}

fn certificates(dir: &Path) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
    use std::io::Write;
    let put =
        |name: &str, text: &str| std::fs::File::create(dir.join(name)).unwrap().write_all(text.as_bytes()).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    put("ca.crt", &ca.pem());
    for name in ["peer", "client", "other"] {
        let key = KeyPair::generate().unwrap();
        let mut leaf = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        put(&format!("{name}.crt"), &leaf.signed_by(&key, &ca).unwrap().pem());
        put(&format!("{name}.key"), &key.serialize_pem());
    }
}

#[test]
fn a_normal_user_has_a_basic_box() {
    const USER: &str = "47113";
    let mut place = Place::new("3.5.16");
    let mut words = vec!["run".to_owned(), "--config".to_owned(), place.path("cluster.yaml").display().to_string()];
    let mut program = quorate();
    if is_root() {
        let root = place.root.path().to_owned();
        for (of, to) in [(quorate(), root.join("quorate")), (place.tools.etcd.clone(), root.join("etcd"))] {
            if std::fs::hard_link(&of, &to).is_err() {
                copy_program(&of, &to);
            }
        }
        place.binary = root.join("etcd");
        std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o755)).unwrap();
        let number = USER.parse().ok();
        std::os::unix::fs::chown(&root, number, number).unwrap();
        let flags = ["--reuid", USER, "--regid", USER, "--clear-groups", "--"].map(str::to_owned);
        words = flags.into_iter().chain([root.join("quorate").display().to_string()]).chain(words).collect();
        program = "/usr/bin/setpriv".into();
    }
    // All or nothing is nothing for a normal user, and that is said.
    place.more = "box: {level: strict}\n".to_owned();
    place.file();
    let mut agent = Running::start(&program, &words, &place.env);
    let status = place.wait_phase("refused");
    assert_eq!(status["code"], "Q1106", "{status}");
    assert!(status["cause"].as_str().is_some_and(|cause| cause.contains("it lacks: user, ")), "{status}");
    assert!(status["way_out"].to_string().contains("`box: {level: basic}`"), "{status}");
    assert!(agent.stop().success(), "{}", agent.log());
    place.more = String::new();
    place.file();
    let mut agent = Running::start(&program, &words, &place.env);
    place.wait_ready(&mut agent);
    let status: Value = place.status();
    assert_eq!(status["etcd"]["box"], "basic", "{status}");
    let row = &place.json(&["ps"])["processes"][0];
    assert_eq!(row["confinement"]["no_new_privs"], true, "{row}");
    assert_eq!(row["confinement"]["capabilities"], 0, "{row}");
    // What it was started in, not what it looks like: with a user namespace much of `basic` looks like `strict`.
    assert_eq!((&row["box"], &row["box_lacks"]), (&"basic".into(), &Value::Null), "{row}");
    if is_root() {
        assert_eq!(row["confinement"]["uid"].to_string(), USER);
    }
    place.put("k", "v");
    let pid = place.etcd_pid();
    assert!(agent.stop().success(), "{}", agent.log());
    wait_until("nothing is left", LIMIT, || !Path::new(&format!("/proc/{pid}")).exists());
}

#[test]
fn tries_a_refused_box_again_once_the_machine_allows_it() {
    let mut place = Place::new("3.5.16");
    if !is_root() {
        return refused_to_a_normal_user(place);
    }
    // The limit is that of a user namespace of this test, not the machine's.
    place.more = "box: {level: strict}\n".to_owned();
    let file = place.file().display().to_string();
    let limit = "/proc/sys/user/max_mnt_namespaces";
    let line = format!("echo 0 > {limit} && exec {} run --config {file} --name n1", quorate().display());
    let words = ["--user", "--map-root-user", "--", "sh", "-c", &line].map(str::to_owned);
    let mut agent = Running::start(Path::new("/usr/bin/unshare"), &words, &place.env);
    let status = place.wait_phase("refused");
    assert_eq!(status["code"], "Q1106", "{status}");
    let pid = agent.pid().to_string();
    let mended = std::process::Command::new("/usr/bin/nsenter")
        .args(["--user", "--preserve-credentials", "--target", &pid, "--", "sh", "-c", &format!("echo 1000 > {limit}")])
        .status()
        .unwrap();
    assert!(mended.success());
    // Nothing else changes: the agent tries again by itself, and observes the machine again.
    // In this namespace no other user than root has a number, so that the next thing to refuse is the user.
    let mut last = Value::Null;
    wait_until("the box is not refused any more", LIMIT, || {
        last = place.status();
        let decided = ["refused", "waiting", "serving"].iter().any(|phase| last["phase"] == *phase);
        decided && last["code"] != "Q1106"
    });
    assert_eq!(last["code"], "Q1107", "{last}");
    let _ = agent.stop();
}
