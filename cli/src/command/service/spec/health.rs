//! The health check that flags say, or what they make of the one that there is.

use warren_types::{HealthCheck, HttpHeader, Probe};

use super::{Draft, Emptied, merge};
use crate::args::spec::HealthFlags;
use crate::args::value::{HttpTarget, Setting};

/// Where what is wrong with it is told.
const PATH: &str = "spec.task.health";

impl Draft {
    /// Gives the task its check. The ports of the service are known by then.
    pub(super) fn health(&mut self, flags: &HealthFlags, headers: &[HttpHeader]) {
        let asked = self.asked(flags);
        let old = self.spec.task.health.take();
        let mut check = match (old, asked) {
            (Some(old), Some(probe)) => HealthCheck { probe: with_headers_of(&old.probe, probe), ..old },
            (Some(old), None) => old,
            (None, Some(probe)) => HealthCheck::new(probe),
            (None, None) => return self.no_check(flags, headers),
        };
        times(&mut self.emptied, flags, &mut check);
        match &mut check.probe {
            Probe::Http { headers: known, .. } => {
                merge(known, headers, |header| header.name.to_ascii_lowercase());
            }
            Probe::Tcp { .. } | Probe::Exec { .. } if headers.is_empty() => {}
            Probe::Tcp { .. } | Probe::Exec { .. } => {
                let message =
                    "only an HTTP check sends headers; give --health-http, or leave the headers out";
                self.wrong.add(format!("{PATH}.probe"), message);
            }
        }
        self.spec.task.health = Some(check);
    }

    /// What the flags want to be asked, if they say so.
    fn asked(&mut self, flags: &HealthFlags) -> Option<Probe> {
        let HealthFlags { health_http, health_tcp, health_cmd, health_exec, .. } = flags;
        if let Some(HttpTarget { port, path }) = health_http {
            let published = self.spec.ports.iter().map(|port| port.container_port).min();
            let port = port.or(published).unwrap_or_else(|| {
                let message = "no port is published that could be meant; give one: --health-http :PORT/PATH";
                self.wrong.add(format!("{PATH}.probe.http.port"), message);
                // Any will do: the spec is refused.
                1
            });
            return Some(Probe::Http { port, path: path.clone(), headers: Vec::new() });
        }
        let tcp = health_tcp.map(|port| Probe::Tcp { port });
        let shell = |words: &String| ["/bin/sh", "-c", words].map(str::to_owned).to_vec();
        let command = health_cmd.as_ref().map(shell);
        let command = command.or_else(|| (!health_exec.is_empty()).then(|| health_exec.clone()));
        tcp.or_else(|| command.map(|command| Probe::Exec { command }))
    }

    /// Flags that say how a check is made, where there is none.
    fn no_check(&mut self, flags: &HealthFlags, headers: &[HttpHeader]) {
        let mut nobody = HealthCheck::new(Probe::Tcp { port: 1 });
        times(&mut self.emptied, flags, &mut nobody);
        let HealthFlags {
            health_interval,
            health_timeout,
            health_retries,
            health_start_period,
            health_start_interval,
            ..
        } = flags;
        let said = [
            ("--health-interval", is_said(health_interval)),
            ("--health-timeout", is_said(health_timeout)),
            ("--health-retries", is_said(health_retries)),
            ("--health-start-period", is_said(health_start_period)),
            ("--health-start-interval", is_said(health_start_interval)),
            ("--health-header", !headers.is_empty()),
        ];
        if let Some((flag, _)) = said.into_iter().find(|(_, said)| *said) {
            let kinds = "--health-http, --health-tcp, --health-cmd or --health-exec";
            self.wrong.add(PATH, format!("{flag} needs a check, and there is none; give {kinds}"));
        }
    }
}

/// Takes away what an update wants to be gone.
pub(super) fn remove(check: &mut Option<HealthCheck>, all: bool, headers: &[String]) {
    if all {
        *check = None;
    }
    if let Some(HealthCheck { probe: Probe::Http { headers: known, .. }, .. }) = check {
        known.retain(|known| !headers.iter().any(|name| known.name.eq_ignore_ascii_case(name)));
    }
}

fn times(emptied: &mut Emptied, flags: &HealthFlags, check: &mut HealthCheck) {
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
    emptied.put("--health-interval", health_interval, &mut check.interval, default.interval);
    emptied.put("--health-timeout", health_timeout, &mut check.timeout, default.timeout);
    emptied.put("--health-retries", health_retries, &mut check.retries, default.retries);
    emptied.put("--health-start-period", health_start_period, &mut check.start_period, default.start_period);
    let (place, default) = (&mut check.start_interval, default.start_interval);
    emptied.put("--health-start-interval", health_start_interval, place, default);
}

fn is_said<T>(given: &Option<Setting<T>>) -> bool {
    matches!(given, Some(Setting::To(_)))
}

/// An HTTP check that goes elsewhere sends what the one before it sent.
fn with_headers_of(old: &Probe, new: Probe) -> Probe {
    match (old, new) {
        (Probe::Http { headers, .. }, Probe::Http { port, path, .. }) => {
            Probe::Http { port, path, headers: headers.clone() }
        }
        (_, new) => new,
    }
}
