//! AppArmor of this machine: the default profile of containers, and which profile a container gets.
//!
//! Sources: apparmor.d(5), apparmor_parser(8); the files of `securityfs` that list profiles.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::fs;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};
use warren_types::AppArmor;

use crate::Result;
use crate::error::Error;
use crate::programs;

/// The profile of containers that name none.
pub const DEFAULT_APPARMOR_PROFILE: &str = "warren-default";
const DEFAULT_PROFILE_TEXT: &str = include_str!("apparmor/warren-default.profile");
/// The program that loads profiles.
const PARSER: &str = "apparmor_parser";
/// It reads a profile from its standard input, and loads it also if one with that name is loaded.
const PARSER_ARGUMENTS: [&str; 2] = ["--replace", "--skip-cache"];
/// Deadline of the program, which takes some 100 ms.
const PARSER_TIMEOUT: Duration = Duration::from_secs(10);
/// After a failure, containers are created without another attempt for this time.
const LOAD_PAUSE: Duration = Duration::from_secs(60);
/// The most of its output in a message, in characters.
const MAX_QUOTED_OUTPUT: usize = 200;

/// Whether this machine confines containers by AppArmor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AppArmorState {
    /// The kernel has no AppArmor, or it is off.
    #[default]
    Absent,
    /// The default profile is loaded.
    Loaded,
    /// The kernel has AppArmor, and the default profile is not loaded.
    Missing,
}

/// AppArmor of a machine.
#[derive(Clone, Debug)]
pub struct AppArmorHost {
    /// Where sysfs is mounted.
    sys: PathBuf,
    /// The program that loads profiles, and its arguments.
    parser: Option<PathBuf>,
    arguments: Vec<String>,
    /// When the default profile could not be loaded for a container.
    failed_at: Arc<Mutex<Option<Instant>>>,
}

impl AppArmorHost {
    /// Of this machine.
    #[must_use]
    pub fn find() -> Self {
        Self {
            sys: "/sys".into(),
            parser: programs::find(Path::new(PARSER), &programs::search_path()),
            arguments: PARSER_ARGUMENTS.map(str::to_owned).to_vec(),
            failed_at: Arc::default(),
        }
    }

    /// Whether it has the program that loads profiles.
    #[must_use]
    pub fn has_parser(&self) -> bool {
        self.parser.is_some()
    }

    /// Whether the default profile is loaded.
    pub async fn state(&self) -> AppArmorState {
        match self.profiles().await {
            None => AppArmorState::Absent,
            Some(loaded) if loaded.contains(DEFAULT_APPARMOR_PROFILE) => AppArmorState::Loaded,
            Some(_) => AppArmorState::Missing,
        }
    }

    /// Loads the default profile, in the place of one that an earlier version has loaded; nothing without AppArmor.
    ///
    /// # Errors
    /// [`Error::Failed`] without the program, and with what it prints if it fails.
    pub async fn load(&self) -> Result<()> {
        if self.profiles().await.is_none() {
            return Ok(());
        }
        let failed = |reason: String| Error::Failed {
            action: format!("load the AppArmor profile {DEFAULT_APPARMOR_PROFILE}"),
            reason,
        };
        let Some(parser) = &self.parser else {
            return Err(failed(format!("{PARSER} is not installed")));
        };
        match timeout(PARSER_TIMEOUT, run_parser(parser, &self.arguments)).await {
            Err(_) => Err(failed(format!("{PARSER} did not end within {PARSER_TIMEOUT:?}"))),
            Ok(Err(error)) => Err(failed(format!("{}: {error}", parser.display()))),
            Ok(Ok(output)) if output.status.success() => Ok(()),
            Ok(Ok(output)) => {
                let printed = String::from_utf8_lossy(&output.stderr);
                let printed: String = printed.trim().chars().take(MAX_QUOTED_OUTPUT).collect();
                Err(failed(format!("{PARSER} ended with {}: {printed}", output.status)))
            }
        }
    }

    /// The profile that a container gets. The default one is loaded again if another program has removed it; if that
    /// fails, this container and those of the next minute have none.
    ///
    /// # Errors
    /// [`Error::InvalidSpec`]: the profile that was asked for is not loaded.
    pub(crate) async fn profile(&self, asked: &AppArmor, is_privileged: bool) -> Result<Option<String>> {
        let is_missing = |loaded: &BTreeSet<String>| !loaded.contains(DEFAULT_APPARMOR_PROFILE);
        let mut loaded = self.profiles().await;
        let is_needed = *asked == AppArmor::Default && !is_privileged && self.has_parser();
        if is_needed && loaded.as_ref().is_some_and(is_missing) {
            let mut failed_at = self.failed_at.lock().await;
            loaded = self.profiles().await;
            let may_load = failed_at.is_none_or(|at| at.elapsed() >= LOAD_PAUSE);
            if may_load && loaded.as_ref().is_some_and(is_missing) {
                let result = self.load().await;
                *failed_at = result.is_err().then(Instant::now);
                if let Err(error) = result {
                    tracing::warn!(%error, "containers have no AppArmor profile");
                }
                loaded = self.profiles().await;
            }
        }
        choose(asked, is_privileged, loaded.as_ref())
    }

    /// The names of the loaded profiles; `None` without AppArmor. None are known if the kernel does not show them.
    async fn profiles(&self) -> Option<BTreeSet<String>> {
        let enabled = fs::read_to_string(self.sys.join("module/apparmor/parameters/enabled")).await.ok()?;
        let directory = self.sys.join("kernel/security/apparmor");
        // A container of another program has no securityfs, and cannot load profiles.
        if !enabled.starts_with('Y') || !fs::try_exists(&directory).await.unwrap_or_default() {
            return None;
        }
        let listed = fs::read_to_string(directory.join("profiles")).await.unwrap_or_default();
        // "NAME (enforce)"; a name may have spaces.
        let names = listed.lines().map(|line| line.rsplit_once(" (").map_or(line, |(name, _)| name));
        Some(names.map(str::to_owned).collect())
    }
}

async fn run_parser(parser: &Path, arguments: &[String]) -> std::io::Result<Output> {
    let mut command = Command::new(parser);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // A program that does not read it says why.
        let _ = input.write_all(DEFAULT_PROFILE_TEXT.as_bytes()).await;
    }
    child.wait_with_output().await
}

/// The profile that a container gets on a machine with these profiles; `None` for one without AppArmor.
///
/// # Errors
/// [`Error::InvalidSpec`]: the profile that was asked for is not loaded.
pub(crate) fn choose(
    asked: &AppArmor,
    is_privileged: bool,
    loaded: Option<&BTreeSet<String>>,
) -> Result<Option<String>> {
    let is_loaded = |name: &str| loaded.is_some_and(|loaded| loaded.contains(name));
    let name = match asked {
        AppArmor::Unconfined => return Ok(None),
        AppArmor::Default => {
            let is_default = !is_privileged && is_loaded(DEFAULT_APPARMOR_PROFILE);
            return Ok(is_default.then(|| DEFAULT_APPARMOR_PROFILE.to_owned()));
        }
        AppArmor::Profile(name) => name,
    };
    if is_loaded(name) {
        return Ok(Some(name.clone()));
    }
    let reason = match loaded {
        Some(_) => {
            format!(
                "the profile {name} is not loaded on this node; load it with apparmor_parser on each node"
            )
        }
        None => format!("this node has no AppArmor, so it cannot apply the profile {name}"),
    };
    Err(Error::invalid_field("apparmor", reason))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// The files of a machine.
    struct FakeMachine {
        sys: TempDir,
    }

    impl FakeMachine {
        fn new(enabled: &str, profiles: Option<&str>) -> Self {
            let sys = tempfile::tempdir().unwrap();
            let parameters = sys.path().join("module/apparmor/parameters");
            std::fs::create_dir_all(&parameters).unwrap();
            std::fs::write(parameters.join("enabled"), enabled).unwrap();
            if let Some(profiles) = profiles {
                std::fs::create_dir_all(sys.path().join("kernel/security/apparmor")).unwrap();
                std::fs::write(sys.path().join("kernel/security/apparmor/profiles"), profiles).unwrap();
            }
            Self { sys }
        }

        /// With `script`, which gets the path of the list of profiles, in place of the program that loads them.
        fn host(&self, script: Option<&str>) -> AppArmorHost {
            AppArmorHost {
                sys: self.sys.path().to_owned(),
                parser: script.map(|_| "/bin/sh".into()),
                arguments: script.map_or_else(Vec::new, |script| {
                    let profiles = self.sys.path().join("kernel/security/apparmor/profiles");
                    vec!["-c".to_owned(), script.to_owned(), profiles.display().to_string()]
                }),
                failed_at: Arc::default(),
            }
        }
    }

    /// Lists the profile that it reads.
    const LOADS: &str = r#"sed -n 's/^profile \([^ ]*\) .*/\1 (enforce)/p' >> "$0""#;

    #[tokio::test]
    async fn default_profile_is_loaded_and_given() {
        let machine = FakeMachine::new("Y\n", Some("/usr/bin/man (enforce)\n"));
        let host = machine.host(Some(LOADS));
        assert_eq!(host.state().await, AppArmorState::Missing);
        host.load().await.unwrap();
        assert_eq!(host.state().await, AppArmorState::Loaded);
        let given = host.profile(&AppArmor::Default, false).await.unwrap();
        assert_eq!(given.as_deref(), Some(DEFAULT_APPARMOR_PROFILE));
    }

    #[tokio::test]
    async fn removed_default_profile_is_loaded_again() {
        let machine = FakeMachine::new("Y\n", Some(""));
        let host = machine.host(Some(LOADS));
        for (asked, is_privileged) in [(AppArmor::Unconfined, false), (AppArmor::Default, true)] {
            assert_eq!(host.profile(&asked, is_privileged).await.unwrap(), None);
            assert_eq!(host.state().await, AppArmorState::Missing, "{asked}");
        }
        assert!(host.profile(&AppArmor::Default, false).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn container_starts_without_a_profile_that_cannot_be_loaded() {
        let machine = FakeMachine::new("Y\n", Some(""));
        let failing = machine.host(Some("echo 'no such rule' >&2; exit 1"));
        let error = failing.load().await.unwrap_err().to_string();
        assert!(error.contains("warren-default") && error.contains("no such rule"), "{error}");
        assert_eq!(failing.profile(&AppArmor::Default, false).await.unwrap(), None);
        let counting = machine.host(Some("echo attempt >> \"$0\"; exit 1"));
        for _ in 0..2 {
            assert_eq!(counting.profile(&AppArmor::Default, false).await.unwrap(), None);
        }
        let attempts = std::fs::read_to_string(machine.sys.path().join("kernel/security/apparmor/profiles"));
        assert_eq!(attempts.unwrap(), "attempt\n");
        let without = machine.host(None);
        assert!(!without.has_parser());
        let error = without.load().await.unwrap_err().to_string();
        assert!(error.contains("is not installed"), "{error}");
        assert_eq!(without.profile(&AppArmor::Default, false).await.unwrap(), None);
    }

    #[tokio::test]
    async fn machine_without_apparmor_has_no_profiles() {
        let off = FakeMachine::new("N\n", Some("warren-default (enforce)\n"));
        let contained = FakeMachine::new("Y\n", None);
        let other = FakeMachine { sys: tempfile::tempdir().unwrap() };
        for machine in [off, contained, other] {
            let host = machine.host(Some("exit 1"));
            assert_eq!(host.state().await, AppArmorState::Absent);
            host.load().await.unwrap();
            assert_eq!(host.profile(&AppArmor::Default, false).await.unwrap(), None);
            let error = host.profile(&AppArmor::Profile("web".into()), false).await.unwrap_err().to_string();
            assert!(error.contains("apparmor") && error.contains("no AppArmor"), "{error}");
        }
    }

    #[tokio::test]
    async fn named_profile_must_be_loaded() {
        let machine = FakeMachine::new("Y\n", Some("my web (complain)\nweb//child (enforce)\nweb (kill)\n"));
        let host = machine.host(None);
        for is_privileged in [false, true] {
            let given = host.profile(&AppArmor::Profile("web".into()), is_privileged).await.unwrap();
            assert_eq!(given.as_deref(), Some("web"));
        }
        let error = host.profile(&AppArmor::Profile("my".into()), false).await.unwrap_err().to_string();
        assert!(error.contains("the profile my is not loaded"), "{error}");
    }

    #[test]
    fn profile_text_has_the_default_name() {
        let header = format!("profile {DEFAULT_APPARMOR_PROFILE} flags=");
        assert!(DEFAULT_PROFILE_TEXT.lines().any(|line| line.starts_with(&header)));
        let (open, close) = (DEFAULT_PROFILE_TEXT.matches('{'), DEFAULT_PROFILE_TEXT.matches('}'));
        assert_eq!(open.count(), close.count());
    }
}
