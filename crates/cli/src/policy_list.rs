//! Lists of policies: `lru,2q:kin=0.25,kout=0.5,all`.

use crate::policy_text;
use pagekeeper_policy::{PolicySpec, all};
use std::str::FromStr;

/// One `--policy` argument.
#[derive(Clone, Debug)]
pub(crate) struct PolicyList {
    specs: Vec<PolicySpec>,
    /// `all` was in it.
    has_all: bool,
}

/// Splits at the commas between policies, and not at those between one policy's parameters: what
/// follows is a parameter if it reads `key=…`, and a file's path if there is a slash before the `=`.
fn split(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for piece in text.split(',') {
        let is_parameter =
            piece.find(['=', ':', '/']).is_some_and(|at| piece[at..].starts_with('='));
        match parts.last_mut() {
            Some(last) if is_parameter => {
                last.push(',');
                last.push_str(piece);
            }
            _ => parts.push(piece.to_owned()),
        }
    }
    parts
}

impl FromStr for PolicyList {
    type Err = String;

    fn from_str(text: &str) -> Result<PolicyList, String> {
        let mut list = PolicyList { specs: Vec::new(), has_all: false };
        for part in split(text) {
            if part.trim() == "all" {
                list.has_all = true;
                list.specs.extend(all().iter().map(PolicySpec::of));
            } else {
                list.specs.push(policy_text::parse(&part)?);
            }
        }
        Ok(list)
    }
}

/// Every policy of the registry.
pub(crate) fn every() -> PolicyList {
    PolicyList { specs: all().iter().map(PolicySpec::of).collect(), has_all: true }
}

/// The policies of several arguments, each once, in order. Where only policies that run live make
/// sense, `all` leaves the others out; one that was asked for by name stays, for the error that
/// says why it cannot be.
pub(crate) fn flatten(lists: &[PolicyList], live_only: bool) -> Vec<PolicySpec> {
    let mut specs: Vec<PolicySpec> = Vec::new();
    for list in lists {
        for spec in &list.specs {
            let left_out = list.has_all && live_only && !spec.info().runs_live();
            if !left_out && !specs.contains(spec) {
                specs.push(spec.clone());
            }
        }
    }
    specs
}

/// The policies of several arguments as they were given, one that comes twice included.
pub(crate) fn in_order(lists: &[PolicyList]) -> Vec<PolicySpec> {
    lists.iter().flat_map(|list| list.specs.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commas_within_a_policy_do_not_split() {
        assert_eq!(split("lru"), ["lru"]);
        assert_eq!(split("2q:kin=0.25,kout=0.5,lru"), ["2q:kin=0.25,kout=0.5", "lru"]);
        assert_eq!(split("a,b:x=1,c:y=2,z=3"), ["a", "b:x=1", "c:y=2,z=3"]);
        assert_eq!(split("k=1"), ["k=1"]);
        assert_eq!(split("lru,dir/m=x.hipec:a=1/2,b=1/3"), ["lru", "dir/m=x.hipec:a=1/2,b=1/3"]);
        assert_eq!(split("a,,b"), ["a", "", "b"]);
    }

    #[test]
    fn all_is_every_policy_once() {
        let lists = ["lru,all".parse().unwrap(), "lru".parse().unwrap()];
        let specs = flatten(&lists, false);
        assert_eq!(specs.len(), all().len());
        assert_eq!(specs[0].name(), "lru");
        assert!(flatten(&lists, true).iter().all(|spec| spec.info().runs_live()));
        assert_eq!(flatten(&["opt".parse().unwrap()], true).len(), 1);
        assert!("lru,".parse::<PolicyList>().is_err());
        assert!("lru,mru:x=1".parse::<PolicyList>().is_err());
    }

    proptest! {
        #[test]
        fn joined_policies_split_again(
            specs in prop::collection::vec(("[a-z0-9]{1,6}", prop::collection::vec("[a-z]{1,3}=[0-9./%]{1,4}", 0..3)), 1..6)
        ) {
            let specs: Vec<String> = specs.into_iter().map(|(name, parameters)| {
                if parameters.is_empty() { name } else { format!("{name}:{}", parameters.join(",")) }
            }).collect();
            prop_assert_eq!(split(&specs.join(",")), specs);
        }
    }
}
