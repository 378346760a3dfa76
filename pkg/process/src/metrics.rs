//! Where a node shows its metrics and whether it is well.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::str::FromStr;

use clap::Args;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use warren_telemetry::{Server, Telemetry};

use crate::{Exit, Failure, chain};

/// On this machine only: whoever reads metrics sees what runs here.
const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9090);

/// Where metrics are served, as it is told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub struct MetricsArgs {
    /// Where /metrics, /health and /ready are served by plain HTTP, or none [default: 127.0.0.1:9090]
    #[arg(long, env = "WARREN_METRICS_LISTEN", value_name = "IP:PORT")]
    pub metrics_listen: Option<MetricsListen>,
}

/// Where metrics are served, if anywhere: `127.0.0.1:9090` or `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricsListen {
    /// Nowhere.
    None,
    /// There. Port 0 takes any that is free; the log says which.
    At(SocketAddr),
}

impl Default for MetricsListen {
    fn default() -> Self {
        Self::At(DEFAULT)
    }
}

impl FromStr for MetricsListen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            text => {
                let address =
                    text.parse().map_err(|_| "give IP:PORT like 127.0.0.1:9090, or none".to_owned());
                address.map(Self::At)
            }
        }
    }
}

impl fmt::Display for MetricsListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl Serialize for MetricsListen {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MetricsListen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl MetricsListen {
    /// Serves what `telemetry` has, for as long as the server is kept; `None` where nothing is to be served.
    ///
    /// # Errors
    /// The address cannot be had.
    pub async fn serve(self, telemetry: &Telemetry) -> Result<Option<Server>, Failure> {
        let Self::At(address) = self else { return Ok(None) };
        match Server::start(address, telemetry.clone()).await {
            Ok(server) => Ok(Some(server)),
            Err(error) => {
                let hint =
                    "choose another address with --metrics-listen IP:PORT, or give --metrics-listen none";
                let taken = error.source.kind() == std::io::ErrorKind::AddrInUse;
                let exit = if taken { Exit::Conflict } else { Exit::Failed };
                Err(Failure::new(exit, "the node was not started", chain(&error), hint))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        metrics: MetricsArgs,
    }

    fn said(value: &str) -> Result<Option<MetricsListen>, clap::Error> {
        Cli::try_parse_from(["warren", "--metrics-listen", value]).map(|cli| cli.metrics.metrics_listen)
    }

    #[test]
    fn an_address_or_none_is_said_and_remembered_as_it_was_said() {
        for text in ["none", "127.0.0.1:9090", "0.0.0.0:0", "[::1]:9100"] {
            let listen = said(text).unwrap().unwrap();
            let kept = toml::Value::try_from(listen).unwrap();
            assert_eq!((kept.as_str(), kept.clone().try_into::<MetricsListen>()), (Some(text), Ok(listen)));
        }
        assert_eq!(Cli::try_parse_from(["warren"]).unwrap().metrics, MetricsArgs::default());
        assert_eq!(MetricsListen::default().to_string(), "127.0.0.1:9090");
        for bad in ["", "9090", "localhost:9090", "None", "127.0.0.1", "127.0.0.1:70000"] {
            let error = said(bad).unwrap_err().to_string();
            assert!(error.contains("--metrics-listen") && error.contains("or none"), "{error}");
        }
    }

    #[tokio::test]
    async fn an_address_in_use_is_refused_with_the_flags_name() {
        let telemetry = Telemetry::of(&[]);
        assert!(MetricsListen::None.serve(&telemetry).await.unwrap().is_none());
        let any: MetricsListen = "127.0.0.1:0".parse().unwrap();
        let server = any.serve(&telemetry).await.unwrap().unwrap();
        let failure = MetricsListen::At(server.address()).serve(&telemetry).await.unwrap_err();
        assert_eq!(failure.exit, Exit::Conflict);
        assert!(failure.why.contains(&server.address().to_string()), "{failure}");
        assert!(failure.hint.contains("--metrics-listen"), "{failure}");
    }
}
