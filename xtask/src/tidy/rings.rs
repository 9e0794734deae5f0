//! Checks the rings: folder = ring = rule, and edges run `app -> effects -> pure`.
//!
//! **Rule:** what a crate may reach is read from cargo's own resolution, not from how its sources look.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Report;

/// Crates that touch the world; none may be below a pure crate. A trailing `-` stands for any name that starts so.
const WORLD: &[&str] = &["tokio", "rustix", "reqwest", "tonic", "hickory-", "hyper", "mio", "socket2", "tempfile"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Ring {
    Pure,
    Effects,
    App,
    Test,
}

/// One crate of the workspace.
#[derive(Debug)]
struct Member {
    name: String,
    ring: Ring,
}

pub(super) fn check(root: &Path, report: &mut Report) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).current_dir(root).args(["metadata", "--format-version=1", "--locked"]).output();
    let output = output.context("cannot run `cargo metadata`")?;
    ensure!(output.status.success(), "`cargo metadata` failed: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: Value = serde_json::from_slice(&output.stdout).context("`cargo metadata` did not print JSON")?;
    check_metadata(&metadata, root, report)
}

fn check_metadata(metadata: &Value, root: &Path, report: &mut Report) -> Result<()> {
    let members = members(metadata, root)?;
    let graph = dependency_graph(metadata)?;
    let names = names(metadata)?;
    for (id, member) in &members {
        check_edges(member, graph.get(id), &members, report);
        if member.ring == Ring::Pure {
            check_closure(id, member, &graph, &names, report);
        }
    }
    for package in list(metadata, "packages")? {
        check_lints(package, root, &members, report)?;
    }
    Ok(())
}

fn check_edges(
    member: &Member,
    dependencies: Option<&BTreeSet<String>>,
    members: &BTreeMap<String, Member>,
    report: &mut Report,
) {
    for dependency in dependencies.into_iter().flatten().filter_map(|id| members.get(id)) {
        let inward = dependency.ring < member.ring;
        let sideways = dependency.ring == member.ring
            && (member.ring != Ring::Effects
                || dependency.name == "quorate-host"
                || (member.name == "quorate-coordination" && dependency.name == "quorate-etcd")
                || (knows_an_engine(&member.name) && !knows_an_engine(&dependency.name)));
        if !inward && !sideways {
            let (from, to) = (&member.name, &dependency.name);
            report.error(format!("`{from}` ({:?}) may not depend on `{to}` ({:?})", member.ring, dependency.ring));
        }
    }
}

/// Only the crates that know one engine may use the other effect crates; the files of the host are for all. Coordination is a
/// client of etcd and uses the one there is.
fn knows_an_engine(name: &str) -> bool {
    matches!(name, "quorate-etcd" | "quorate-postgres")
}

fn check_closure(
    start: &str,
    member: &Member,
    graph: &BTreeMap<String, BTreeSet<String>>,
    names: &BTreeMap<String, String>,
    report: &mut Report,
) {
    let mut reached = BTreeSet::from([start.to_owned()]);
    let mut open = vec![start.to_owned()];
    while let Some(id) = open.pop() {
        for next in graph.get(&id).into_iter().flatten() {
            if reached.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    for name in reached.iter().filter_map(|id| names.get(id)) {
        if WORLD.iter().any(|world| name == world || (world.ends_with('-') && name.starts_with(world))) {
            report.error(format!("pure crate `{}` reaches `{name}`, which touches the world", member.name));
        }
    }
}

fn check_lints(package: &Value, root: &Path, members: &BTreeMap<String, Member>, report: &mut Report) -> Result<()> {
    if !members.contains_key(string(package, "id")?) {
        return Ok(());
    }
    let manifest = Path::new(string(package, "manifest_path")?);
    let text = std::fs::read_to_string(manifest).with_context(|| format!("cannot read `{}`", manifest.display()))?;
    if !text.contains("[lints]\nworkspace = true") {
        let place = manifest.strip_prefix(root).unwrap_or(manifest).display();
        report.error(format!("{place}: say `[lints]` `workspace = true`"));
    }
    Ok(())
}

/// The crates below `crates/`, and xtask, by package id.
fn members(metadata: &Value, root: &Path) -> Result<BTreeMap<String, Member>> {
    let mut members = BTreeMap::new();
    for package in list(metadata, "packages")? {
        let manifest = Path::new(string(package, "manifest_path")?);
        let Ok(place) = manifest.strip_prefix(root) else { continue };
        let ring = match place.to_string_lossy() {
            p if p.starts_with("crates/pure/") => Ring::Pure,
            p if p.starts_with("crates/effects/") => Ring::Effects,
            p if p.starts_with("crates/app/") => Ring::App,
            _ => Ring::Test,
        };
        members.insert(string(package, "id")?.to_owned(), Member { name: string(package, "name")?.to_owned(), ring });
    }
    ensure!(!members.is_empty(), "`cargo metadata` shows no crate below `{}`", root.display());
    Ok(members)
}

fn names(metadata: &Value) -> Result<BTreeMap<String, String>> {
    let packages = list(metadata, "packages")?.iter();
    packages.map(|package| Ok((string(package, "id")?.to_owned(), string(package, "name")?.to_owned()))).collect()
}

/// What each package needs to be built and run; what only its tests need is left out.
fn dependency_graph(metadata: &Value) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut graph = BTreeMap::new();
    for node in list(&metadata["resolve"], "nodes")? {
        let mut needs = BTreeSet::new();
        for dependency in list(node, "deps")? {
            if list(dependency, "dep_kinds")?.iter().any(|kind| kind["kind"] != "dev") {
                needs.insert(string(dependency, "pkg")?.to_owned());
            }
        }
        graph.insert(string(node, "id")?.to_owned(), needs);
    }
    Ok(graph)
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("`cargo metadata` has no list `{key}`"))
}

fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    value[key].as_str().with_context(|| format!("`cargo metadata` has no text `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Builds a workspace of `(folder, name)` crates with `from -> to` edges and returns what is wrong with it.
    fn complaints(crates: &[(&str, &str)], edges: &[(&str, &str)]) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let mut packages = Vec::new();
        let mut nodes = Vec::new();
        for (folder, name) in crates {
            let crate_dir = dir.path().join(folder).join(name);
            std::fs::create_dir_all(&crate_dir).unwrap();
            let manifest = crate_dir.join("Cargo.toml");
            std::io::Write::write_all(&mut std::fs::File::create(&manifest).unwrap(), b"[lints]\nworkspace = true\n")
                .unwrap();
            let manifest = if *folder == "registry" { "/elsewhere/Cargo.toml".into() } else { manifest };
            packages.push(json!({"id": name, "name": name, "manifest_path": manifest}));
            let deps: Vec<Value> = edges
                .iter()
                .filter(|(from, _)| from == name)
                .map(|(_, to)| json!({"pkg": to, "dep_kinds": [{"kind": null}]}))
                .collect();
            nodes.push(json!({"id": name, "deps": deps}));
        }
        let mut report = Report::default();
        let metadata = json!({"packages": packages, "resolve": {"nodes": nodes}});
        check_metadata(&metadata, dir.path(), &mut report).unwrap();
        report.errors
    }

    const CRATES: &[(&str, &str)] = &[
        ("crates/pure", "quorate-plan"),
        ("crates/effects", "quorate-host"),
        ("crates/effects", "quorate-etcd"),
        ("crates/effects", "quorate-coordination"),
        ("crates/app", "quorate"),
        ("registry", "glue"),
        ("registry", "tokio"),
    ];

    #[test]
    fn edges_that_run_inwards_are_in_order() {
        let edges = [
            ("quorate", "quorate-etcd"),
            ("quorate-etcd", "quorate-host"),
            ("quorate-etcd", "quorate-plan"),
            ("quorate-coordination", "quorate-etcd"),
            ("quorate-host", "tokio"),
        ];
        assert_eq!(complaints(CRATES, &edges), Vec::<String>::new());
    }

    #[test]
    fn edges_that_run_outwards_or_between_effects_are_found() {
        assert_eq!(complaints(CRATES, &[("quorate-plan", "quorate-host")]).len(), 1);
        assert_eq!(complaints(CRATES, &[("quorate-host", "quorate")]).len(), 1);
        assert_eq!(complaints(CRATES, &[("quorate-host", "quorate-etcd")]).len(), 1);
        assert_eq!(complaints(CRATES, &[("quorate-host", "quorate-coordination")]).len(), 1);
    }

    #[test]
    fn a_pure_crate_that_reaches_the_world_through_another_is_found() {
        assert_eq!(complaints(CRATES, &[("quorate-plan", "glue"), ("glue", "tokio")]).len(), 1);
    }
}
