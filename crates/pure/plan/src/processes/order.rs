//! Who waits for whom.

use std::collections::BTreeMap;

use crate::spec::ProcessSpec;

/// What etcd is called among the processes.
pub const ETCD: &str = "etcd";

/// Why there is no order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tangle {
    /// One waits for something that is not declared.
    Unknown {
        /// The one that waits.
        process: String,
        /// What it waits for.
        after: String,
    },
    /// These wait for each other.
    Circle(Vec<String>),
}

/// Whether something may be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// All that it waits for is ready.
    Now,
    /// These are not.
    WaitFor(Vec<String>),
}

/// The processes in an order in which each stands behind all that it waits for; those of one rank as declared.
pub fn start_order(processes: &[ProcessSpec]) -> Result<Vec<&ProcessSpec>, Tangle> {
    ranks(processes).map(|ranks| ranks.into_iter().flatten().collect())
}

/// The names in waves: a wave is stopped together, after the one before it has ended.
pub fn stop_waves(processes: &[ProcessSpec]) -> Vec<Vec<String>> {
    // What is in a circle was refused when the file was read.
    let mut ranks = ranks(processes).unwrap_or_else(|_| vec![processes.iter().collect()]);
    ranks.reverse();
    ranks.into_iter().map(|rank| rank.into_iter().map(|process| process.name.clone()).collect()).collect()
}

/// Decides whether a process may be started. `ready`: what is, by name.
pub fn plan_launch(process: &ProcessSpec, ready: &BTreeMap<String, bool>) -> Launch {
    let missing = process.after.iter().filter(|after| ready.get(*after) != Some(&true));
    let missing: Vec<String> = missing.cloned().collect();
    if missing.is_empty() { Launch::Now } else { Launch::WaitFor(missing) }
}

fn ranks(processes: &[ProcessSpec]) -> Result<Vec<Vec<&ProcessSpec>>, Tangle> {
    for process in processes {
        let unknown = process.after.iter().find(|after| *after != ETCD && !processes.iter().any(|p| p.name == **after));
        if let Some(after) = unknown {
            return Err(Tangle::Unknown { process: process.name.clone(), after: after.clone() });
        }
    }
    let mut ranks: Vec<Vec<&ProcessSpec>> = Vec::new();
    let mut rest: Vec<&ProcessSpec> = processes.iter().collect();
    while !rest.is_empty() {
        let waits = |process: &&ProcessSpec| process.after.iter().any(|after| rest.iter().any(|p| p.name == *after));
        let (later, now): (Vec<_>, Vec<_>) = rest.iter().copied().partition(waits);
        if now.is_empty() {
            return Err(Tangle::Circle(later.iter().map(|process| process.name.clone()).collect()));
        }
        ranks.push(now);
        rest = later;
    }
    Ok(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Spec;

    fn processes(list: &[(&str, &[&str])]) -> Vec<ProcessSpec> {
        let one =
            |(name, after): &(&str, &[&str])| format!("  {name}: {{executable: /x, after: [{}]}}\n", after.join(", "));
        let text: String = list.iter().map(one).collect();
        let text = format!("token: t\nplaintext: true\nmembers: [{{name: n1, address: h}}]\nprocesses:\n{text}");
        Spec::parse(text.as_bytes(), "c").map_err(|found| found.render()).unwrap().0.processes
    }

    #[test]
    fn what_is_waited_for_comes_first_and_ends_last() {
        let found = processes(&[("c", &["b", "etcd"]), ("a", &[]), ("b", &["a"]), ("d", &["a"])]);
        let order: Vec<&str> = start_order(&found).unwrap().iter().map(|process| process.name.as_str()).collect();
        assert_eq!(order, ["a", "b", "d", "c"]);
        assert_eq!(stop_waves(&found), [vec!["c"], vec!["b", "d"], vec!["a"]]);
        assert!(stop_waves(&[]).is_empty());
    }

    #[test]
    fn only_the_circle_is_named() {
        let mut found = processes(&[("a", &[]), ("b", &["a"]), ("c", &["b"])]);
        found[1].after.push("c".to_owned());
        assert_eq!(start_order(&found), Err(Tangle::Circle(vec!["b".to_owned(), "c".to_owned()])));
        found[1].after = vec!["x".to_owned()];
        assert_eq!(start_order(&found), Err(Tangle::Unknown { process: "b".to_owned(), after: "x".to_owned() }));
    }

    #[test]
    fn nothing_starts_before_all_it_waits_for_is_ready() {
        let found = processes(&[("a", &[]), ("b", &["a", "etcd"])]);
        let ready = |list: &[(&str, bool)]| list.iter().map(|(name, is)| ((*name).to_owned(), *is)).collect();
        assert_eq!(plan_launch(&found[0], &ready(&[])), Launch::Now);
        let both = Launch::WaitFor(vec!["a".to_owned(), "etcd".to_owned()]);
        assert_eq!(plan_launch(&found[1], &ready(&[])), both);
        let one = Launch::WaitFor(vec!["etcd".to_owned()]);
        assert_eq!(plan_launch(&found[1], &ready(&[("a", true), ("etcd", false)])), one);
        assert_eq!(plan_launch(&found[1], &ready(&[("a", true), ("etcd", true)])), Launch::Now);
    }
}
