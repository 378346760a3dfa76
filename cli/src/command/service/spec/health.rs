//! Builds a health check from flags, or changes the existing one.

use warren_types::{HealthCheck, HttpHeader, Probe};

use super::{SpecDraft, merge};
use crate::args::spec::HealthFlags;
use crate::args::value::{HttpTarget, ResetFlags, Setting};

/// Path of violations.
const PATH: &str = "spec.task.health";

/// The program and arguments of a shell command.
pub(super) fn shell(command: &str) -> Vec<String> {
    ["/bin/sh", "-c", command].map(str::to_owned).to_vec()
}

impl SpecDraft {
    /// Sets the health check. The ports of the service must be set.
    pub(super) fn health(&mut self, flags: &HealthFlags, headers: &[HttpHeader]) {
        let asked = self.probe(flags);
        let old = self.spec.task.health.take();
        let mut check = match (old, asked) {
            (Some(old), Some(probe)) => HealthCheck { probe: keep_headers(&old.probe, probe), ..old },
            (Some(old), None) => old,
            (None, Some(probe)) => HealthCheck::new(probe),
            (None, None) => return self.remove_check(flags, headers),
        };
        set_times(&mut self.resets, flags, &mut check);
        match &mut check.probe {
            Probe::Http { headers: known, .. } => {
                merge(known, headers, |header| header.name.to_ascii_lowercase());
            }
            Probe::Tcp { .. } | Probe::Exec { .. } if headers.is_empty() => {}
            Probe::Tcp { .. } | Probe::Exec { .. } => {
                let message = "only an HTTP check has headers; give --health-http, or leave the headers out";
                self.violations.add(format!("{PATH}.probe"), message);
            }
        }
        self.spec.task.health = Some(check);
    }

    /// The probe that the flags specify, if any.
    fn probe(&mut self, flags: &HealthFlags) -> Option<Probe> {
        let HealthFlags { health_http, health_tcp, health_cmd, health_exec, .. } = flags;
        if let Some(HttpTarget { port, path }) = health_http {
            let published = self.spec.ports.iter().map(|port| port.container_port).min();
            let port = port.or(published).unwrap_or_else(|| {
                let message = "no port is published; give one: --health-http :PORT/PATH";
                self.violations.add(format!("{PATH}.probe.http.port"), message);
                // Any port: the spec is refused.
                1
            });
            return Some(Probe::Http { port, path: path.clone(), headers: Vec::new() });
        }
        let tcp = health_tcp.map(|port| Probe::Tcp { port });
        let command = health_cmd.as_deref().map(shell);
        let command = command.or_else(|| (!health_exec.is_empty()).then(|| health_exec.clone()));
        tcp.or_else(|| command.map(|command| Probe::Exec { command }))
    }

    /// Reports flags that need a check if there is none.
    fn remove_check(&mut self, flags: &HealthFlags, headers: &[HttpHeader]) {
        let mut unused = HealthCheck::new(Probe::Tcp { port: 1 });
        set_times(&mut self.resets, flags, &mut unused);
        let HealthFlags {
            health_interval,
            health_timeout,
            health_retries,
            health_start_period,
            health_start_interval,
            ..
        } = flags;
        let given = [
            ("--health-interval", is_given(health_interval)),
            ("--health-timeout", is_given(health_timeout)),
            ("--health-retries", is_given(health_retries)),
            ("--health-start-period", is_given(health_start_period)),
            ("--health-start-interval", is_given(health_start_interval)),
            ("--health-header", !headers.is_empty()),
        ];
        if let Some((flag, _)) = given.into_iter().find(|(_, given)| *given) {
            let kinds = "--health-http, --health-tcp, --health-cmd or --health-exec";
            self.violations.add(PATH, format!("{flag} requires a health check; give {kinds}"));
        }
    }
}

/// Removes the check, or headers of it.
pub(super) fn remove_from_check(check: &mut Option<HealthCheck>, all: bool, headers: &[String]) {
    if all {
        *check = None;
    }
    if let Some(HealthCheck { probe: Probe::Http { headers: known, .. }, .. }) = check {
        known.retain(|known| !headers.iter().any(|name| known.name.eq_ignore_ascii_case(name)));
    }
}

fn set_times(emptied: &mut ResetFlags, flags: &HealthFlags, check: &mut HealthCheck) {
    let HealthFlags {
        health_http: _,
        health_tcp: _,
        health_cmd: _,
        health_exec: _,
        health_interval,
        health_timeout,
        health_retries,
        health_start_period,
        health_start_interval,
    } = flags;
    let default = HealthCheck::new(Probe::Tcp { port: 1 });
    emptied.set("--health-interval", health_interval, &mut check.interval, default.interval);
    emptied.set("--health-timeout", health_timeout, &mut check.timeout, default.timeout);
    emptied.set("--health-retries", health_retries, &mut check.retries, default.retries);
    emptied.set("--health-start-period", health_start_period, &mut check.start_period, default.start_period);
    let (place, default) = (&mut check.start_interval, default.start_interval);
    emptied.set("--health-start-interval", health_start_interval, place, default);
}

fn is_given<T>(given: &Option<Setting<T>>) -> bool {
    matches!(given, Some(Setting::Set(_)))
}

/// A changed HTTP check keeps the headers of the old one.
fn keep_headers(old: &Probe, new: Probe) -> Probe {
    match (old, new) {
        (Probe::Http { headers, .. }, Probe::Http { port, path, .. }) => {
            Probe::Http { port, path, headers: headers.clone() }
        }
        (_, new) => new,
    }
}
