//! Every policy by name: what it is, what it costs, its parameters, and how to build it.
use std::fmt;
use std::sync::Arc;

use crate::parameters::{ParameterInfo, Parameters};
use crate::{Policy, policies};

/// Where a policy was published.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Source {
    /// Authors, title, place and year.
    pub title: &'static str,
    /// Which part of it describes the policy as it is built here.
    pub section: &'static str,
}

/// Builds a policy from its parameters, the number of frames and a seed.
pub type Build = fn(&Parameters, u32, u64) -> Box<dyn Policy>;

/// Where a policy can run.
#[derive(Clone, Copy, Debug)]
pub enum Runs {
    /// In the simulator and on live memory.
    Anywhere(Build),
    /// In the simulator alone, which has the code: it needs to know the future.
    SimulatorOnly,
}

#[cfg(feature = "serde")]
impl serde::Serialize for Runs {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(match self {
            Runs::Anywhere(_) => "anywhere",
            Runs::SimulatorOnly => "simulator",
        })
    }
}

/// A row of the registry.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct PolicyInfo {
    /// The name in commands, reports and files; lower case, stable.
    pub name: &'static str,
    /// Other names it answers to.
    pub aliases: &'static [&'static str],
    /// What it does, in one line.
    pub summary: &'static str,
    /// When it is a good choice.
    pub helps: &'static str,
    /// When it is a bad one.
    pub hurts: &'static str,
    /// Where it was published.
    pub source: Source,
    /// Time per operation.
    pub cost: &'static str,
    /// Memory per page number in use, in bytes.
    pub bytes_per_page: u32,
    /// The parameters it takes.
    pub parameters: &'static [ParameterInfo],
    /// Where it can run, and how it is built.
    pub runs: Runs,
}

impl PolicyInfo {
    /// Whether the policy can run on live memory, not in the simulator alone.
    pub const fn runs_live(&self) -> bool {
        matches!(self.runs, Runs::Anywhere(_))
    }

    /// Whether `name` is this policy's name or an alias of it; case does not matter.
    pub fn answers_to(&self, name: &str) -> bool {
        self.names().any(|known| known.eq_ignore_ascii_case(name))
    }

    fn names(&self) -> impl Iterator<Item = &'static str> {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

/// All policies, in the order people see them.
pub fn all() -> &'static [PolicyInfo] {
    policies::ALL
}

/// The policy of this name or alias.
pub fn find(name: &str) -> Option<&'static PolicyInfo> {
    all().iter().find(|info| info.answers_to(name))
}

/// A policy and its parameters, as text gives them: `name` or `name:key=value,…`.
///
/// Its `Display` is the shortest text that means the same, with the policy's own name and without
/// what is default.
#[derive(Clone, Debug)]
pub struct PolicySpec {
    info: &'static PolicyInfo,
    parameters: Parameters,
    loaded: Option<Loaded>,
}

type LoadedBuild = dyn Fn(&Parameters, u32, u64) -> Box<dyn Policy> + Send + Sync;

/// A policy that is not in the registry.
#[derive(Clone)]
struct Loaded {
    name: Arc<str>,
    definition: Arc<[u8]>,
    build: Arc<LoadedBuild>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("name", &self.name).finish_non_exhaustive()
    }
}

impl PolicySpec {
    /// Reads `name` or `name:key=value,…`. Spaces around names, keys and values are dropped.
    ///
    /// # Errors
    /// If the policy or a key is unknown, a value is out of its range, a key comes twice, or a
    /// part has no `=`; the message says what is possible instead.
    pub fn parse(text: &str) -> Result<Self, PolicyError> {
        let (name, settings) = match text.split_once(':') {
            Some((name, settings)) => (name.trim(), Some(settings)),
            None => (text.trim(), None),
        };
        let info = find(name).ok_or_else(|| PolicyError::unknown_policy(name))?;
        Self { info, parameters: Self::settings(info, settings)?, loaded: None }.agreeing()
    }

    /// The parameters that `key=value,…` sets.
    fn settings(
        info: &'static PolicyInfo,
        settings: Option<&str>,
    ) -> Result<Parameters, PolicyError> {
        let mut parameters = Parameters::defaults(info.parameters);
        let mut seen = vec![false; info.parameters.len()];
        for setting in settings.into_iter().flat_map(|settings| settings.split(',')) {
            let (key, value) = setting
                .split_once('=')
                .map(|(key, value)| (key.trim(), value.trim()))
                .ok_or_else(|| PolicyError::Malformed {
                    policy: info.name,
                    setting: setting.trim().to_owned(),
                })?;
            let Some(place) = info.parameters.iter().position(|known| known.key == key) else {
                return Err(PolicyError::unknown_parameter(info, key));
            };
            if std::mem::replace(&mut seen[place], true) {
                return Err(PolicyError::Repeated { policy: info.name, key: key.to_owned() });
            }
            let kind = info.parameters[place].kind;
            parameters.values[place] = kind.parse(value).ok_or_else(|| PolicyError::BadValue {
                policy: info.name,
                key: key.to_owned(),
                value: value.to_owned(),
                expected: kind.to_string(),
            })?;
        }
        Ok(parameters)
    }

    /// The same, if its parameters go together.
    fn agreeing(self) -> Result<Self, PolicyError> {
        match self.parameters.disagreeing() {
            None => Ok(self),
            Some((key, value, expected)) => Err(PolicyError::BadValue {
                policy: self.info.name,
                key: key.to_owned(),
                value,
                expected,
            }),
        }
    }

    /// A policy that is not in the registry, such as a program of the user's. `name` is what it is
    /// shown as, `settings` its parameters as `key=value,…`, and `definition` what makes it what it
    /// is, for whoever has to build it again elsewhere; `build` makes it from its parameters, a
    /// number of frames and a seed.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), for the settings.
    pub fn loaded(
        info: &'static PolicyInfo,
        name: &str,
        settings: Option<&str>,
        definition: &[u8],
        build: impl Fn(&Parameters, u32, u64) -> Box<dyn Policy> + Send + Sync + 'static,
    ) -> Result<Self, PolicyError> {
        let parameters = Self::settings(info, settings)?;
        let loaded =
            Loaded { name: name.into(), definition: definition.into(), build: Arc::new(build) };
        Self { info, parameters, loaded: Some(loaded) }.agreeing()
    }

    /// The same policy with one parameter set to another value.
    ///
    /// # Errors
    /// As [`parse`](Self::parse), for that parameter.
    pub fn with(mut self, key: &str, value: &str) -> Result<Self, PolicyError> {
        let Some(place) = self.info.parameters.iter().position(|known| known.key == key) else {
            return Err(PolicyError::unknown_parameter(self.info, key));
        };
        let set = Self::settings(self.info, Some(&format!("{key}={value}")))?;
        self.parameters.values[place] = set.values[place].clone();
        self.agreeing()
    }

    /// What makes a policy that is not in the registry what it is: a program's binary form.
    pub fn definition(&self) -> Option<&[u8]> {
        self.loaded.as_ref().map(|loaded| &*loaded.definition)
    }

    /// The policy of this registry row, with its defaults.
    pub fn of(info: &'static PolicyInfo) -> Self {
        Self { info, parameters: Parameters::defaults(info.parameters), loaded: None }
    }

    /// The registry's row, or what stands for it.
    pub const fn info(&self) -> &'static PolicyInfo {
        self.info
    }

    /// The policy's own name, whatever alias was used.
    pub const fn name(&self) -> &'static str {
        self.info.name
    }

    /// The parameters, defaults included.
    pub const fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Builds the policy for a pool of `frames`. `seed` feeds whatever is random in it.
    ///
    /// # Errors
    /// [`PolicyError::SimulatorOnly`] for a policy that needs to know the future.
    pub fn build(&self, frames: u32, seed: u64) -> Result<Box<dyn Policy>, PolicyError> {
        if let Some(loaded) = &self.loaded {
            return Ok((loaded.build)(&self.parameters, frames, seed));
        }
        match self.info.runs {
            Runs::Anywhere(build) => Ok(build(&self.parameters, frames, seed)),
            Runs::SimulatorOnly => Err(PolicyError::SimulatorOnly { policy: self.info.name }),
        }
    }
}

impl std::str::FromStr for PolicySpec {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::parse(text)
    }
}

impl PartialEq for PolicySpec {
    fn eq(&self, other: &Self) -> bool {
        let program = |spec: &Self| {
            spec.loaded.as_ref().map(|loaded| (loaded.name.clone(), loaded.definition.clone()))
        };
        self.info.name == other.info.name
            && self.parameters == other.parameters
            && program(self) == program(other)
    }
}

impl fmt::Display for PolicySpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.loaded.as_ref().map_or(self.info.name, |loaded| &loaded.name))?;
        for (place, (key, value)) in self.parameters.given().enumerate() {
            let separator = if place == 0 { ':' } else { ',' };
            write!(f, "{separator}{key}={value}")?;
        }
        Ok(())
    }
}

/// Why text is not a policy, or a policy cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error(
        "there is no policy `{name}`{}; policies are {}",
        suggestion.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default(),
        names()
    )]
    UnknownPolicy {
        /// The name given.
        name: String,
        /// A name close to it, if one is.
        suggestion: Option<&'static str>,
    },
    /// The policy has no such parameter.
    #[error(
        "policy `{policy}` has no parameter `{key}`; {}",
        if known.is_empty() { "it takes none".to_owned() } else { format!("it takes {known}") }
    )]
    UnknownParameter {
        /// The policy.
        policy: &'static str,
        /// The key given.
        key: String,
        /// The keys that it takes, separated by commas.
        known: String,
    },
    /// A parameter came twice.
    #[error("policy `{policy}`: parameter `{key}` is given twice; give it once")]
    Repeated {
        /// The policy.
        policy: &'static str,
        /// The key.
        key: String,
    },
    /// A parameter's value is not one that it takes.
    #[error("policy `{policy}`: `{key}={value}` must be {expected}")]
    BadValue {
        /// The policy.
        policy: &'static str,
        /// The key.
        key: String,
        /// The value given.
        value: String,
        /// What it may be.
        expected: String,
    },
    /// What follows the colon is not `key=value,…`.
    #[error(
        "policy `{policy}`: `{setting}` is not a parameter; write `{policy}` or \
         `{policy}:key=value,…`"
    )]
    Malformed {
        /// The policy.
        policy: &'static str,
        /// The part that has no `=`.
        setting: String,
    },
    /// The policy needs to know the future.
    #[error("policy `{policy}` knows the future and runs in the simulator alone")]
    SimulatorOnly {
        /// The policy.
        policy: &'static str,
    },
}

impl PolicyError {
    fn unknown_policy(name: &str) -> Self {
        let lower = name.to_ascii_lowercase();
        let suggestion = all()
            .iter()
            .flat_map(PolicyInfo::names)
            .map(|known| (edit_distance(&lower, known), known))
            .min_by_key(|(distance, _)| *distance)
            // A third of the letters wrong is a slip; more is another word.
            .filter(|(distance, known)| *distance <= known.len().div_ceil(3))
            .map(|(_, known)| known);
        Self::UnknownPolicy { name: name.to_owned(), suggestion }
    }

    fn unknown_parameter(info: &PolicyInfo, key: &str) -> Self {
        let known: Vec<_> =
            info.parameters.iter().map(|known| format!("`{}`", known.key)).collect();
        Self::UnknownParameter { policy: info.name, key: key.to_owned(), known: known.join(", ") }
    }
}

fn names() -> String {
    all().iter().map(|info| info.name).collect::<Vec<_>>().join(", ")
}

/// Levenshtein's distance: letters to insert, delete or change.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = (above + 1).min(row[j] + 1).min(diagonal + usize::from(a != *b));
            diagonal = above;
        }
    }
    row[right.len()]
}
