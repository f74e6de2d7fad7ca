//! `lowtide exporter`.

use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use lowtide_exporter::seal::{OwnFiles, seal};
use lowtide_exporter::server::{Listener, serve};
use lowtide_exporter::web_config::WebConfig;
use lowtide_exporter::{Exporter, GroupBy, ListenAddress, textfile};
use lowtide_supervise::keep_own_memory_low;
use lowtide_survey::{Options, Survey};

use crate::args::ExporterArgs;
use crate::exit::{Exit, Failure};
use crate::interrupt;
use crate::output::{Output, note};

/// Time between two readings of RSS.
const BETWEEN_SCANS: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &ExporterArgs, _output: &Output) -> Result<Exit, Failure> {
    keep_own_memory_low();
    let config = match &args.web_config {
        Some(path) => WebConfig::read(path).map_err(|error| {
            Failure::usage(error).next("promtool check web-config FILE     (describes its errors)")
        })?,
        None => WebConfig::default(),
    };
    let listener = match &args.textfile {
        Some(path) => {
            textfile::check(path).map_err(|error| Failure::io(path, &error))?;
            None
        }
        None => Some(Listener::bind(&args.listen).map_err(|error| unbound(&args.listen, &error))?),
    };
    // Threads that start later are sealed, too.
    let files = match (&args.listen, &args.textfile) {
        (ListenAddress::Tcp(_), None) => OwnFiles::None,
        _ => OwnFiles::Some,
    };
    seal(files).map_err(Failure::failed)?;
    let interrupt = interrupt::flag();
    let options = Options {
        filter: args.filter.survey_filter(),
        between_scans: BETWEEN_SCANS,
        workers: 1,
        budget: args.budget,
        hurries: false,
    };
    let survey = Survey::start(options)
        .map_err(|error| Failure::failed(format!("no thread could be started: {error}")))?;
    let exporter = Arc::new(Exporter::new(
        survey,
        args.budget,
        args.group_by.into(),
        args.max_groups as usize,
    ));
    match (listener, &args.textfile) {
        (Some(listener), _) => {
            let scheme = if config.tls.is_some() { "https" } else { "http" };
            let address = listener.address();
            match &args.listen {
                ListenAddress::Tcp(_) => {
                    note!("lowtide: listening on {scheme}://{address}/metrics")
                }
                ListenAddress::Unix(_) => note!("lowtide: listening on {address}"),
            }
            serve(&exporter, listener, config, &interrupt)
                .map_err(|error| Failure::failed(format!("the server failed: {error}")))?;
        }
        (None, Some(path)) => {
            note!("lowtide: writing metrics to {}", path.display());
            textfile::run(&exporter, path, &interrupt, |error| {
                note!("lowtide: {} could not be written: {error}", path.display());
            });
        }
        (None, None) => {}
    }
    Ok(Exit::Done)
}

fn unbound(address: &ListenAddress, error: &std::io::Error) -> Failure {
    let exit = match error.kind() {
        std::io::ErrorKind::PermissionDenied => Exit::NotPermitted,
        _ => Exit::Failed,
    };
    let failure = Failure::new(exit, format!("cannot listen on {address}: {error}"));
    match (error.kind(), address) {
        (std::io::ErrorKind::AddrInUse, ListenAddress::Tcp(text)) => {
            let port = text.rsplit(':').next().unwrap_or_default();
            failure.next(format!(
                "ss -ltnp 'sport = :{port}'     (shows the process that listens there)"
            ))
        }
        _ => failure,
    }
}

/// The values of `--group-by`.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum GroupByChoice {
    /// The path of the program
    Exe,
    /// The short name
    Comm,
    /// The memory cgroup
    Cgroup,
    /// The Kubernetes pod, by its UID
    Pod,
}

impl From<GroupByChoice> for GroupBy {
    fn from(choice: GroupByChoice) -> Self {
        match choice {
            GroupByChoice::Exe => Self::Exe,
            GroupByChoice::Comm => Self::Comm,
            GroupByChoice::Cgroup => Self::Cgroup,
            GroupByChoice::Pod => Self::Pod,
        }
    }
}
