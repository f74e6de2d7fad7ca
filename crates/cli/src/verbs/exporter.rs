//! `lowtide exporter`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use lowtide_exporter::GroupBy;
use lowtide_exporter::file_process::{FileProcess, OwnFile};
use lowtide_exporter::privileges::{User, keep_reading_only};
use lowtide_exporter::seal::{Role, seal};
use lowtide_exporter::server::{Listener, serve};
use lowtide_exporter::web_config::WebConfig;
use lowtide_exporter::{Exporter, ListenAddress, textfile};
use lowtide_probe::mapped::read_local_files_only;
use lowtide_probe::patience::Patience;
use lowtide_supervise::keep_own_memory_low;
use lowtide_survey::budget::UncountedCpu;
use lowtide_survey::{Survey, SurveyOptions};

use crate::args::ExporterArgs;
use crate::console::interrupt;
use crate::console::output::{Output, note};
use crate::failure::exit::{Exit, Failure};

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
    let destination = Destination::open(args)?;
    if !args.remote_files {
        read_local_files_only();
    }
    restrict()?;
    let interrupt = interrupt::flag();
    let group_by = GroupBy::from(args.group_by);
    let options = SurveyOptions {
        filter: args.filter.survey_filter(),
        between_scans: BETWEEN_SCANS,
        workers: 1,
        budget: args.budget,
        hurries: false,
        patience: Patience::default(),
        cgroup_of: group_by.cgroup_of(),
        uncounted_cpu: UncountedCpu::default(),
    };
    let survey = Survey::start(options.clone())
        .map_err(|error| Failure::failed(format!("no thread could be started: {error}")))?;
    let exporter = Arc::new(Exporter::new(survey, &options, group_by, args.max_groups as usize));
    match destination {
        Destination::Socket(listener, _file) => {
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
        Destination::Text(path, mut file) => {
            note!("lowtide: writing metrics to {}", path.display());
            textfile::run(&exporter, &mut file, &interrupt, |error| {
                note!("lowtide: {} could not be written: {error}", path.display());
            });
        }
    }
    Ok(Exit::Done)
}

/// Where the metrics go. It is opened before the exporter gives up its privileges.
enum Destination {
    /// A socket; if it is a Unix socket, also the process that removes its file.
    Socket(Listener, Option<FileProcess>),
    /// A text file, and the process that writes it.
    Text(PathBuf, FileProcess),
}

impl Destination {
    fn open(args: &ExporterArgs) -> Result<Self, Failure> {
        let bind = || Listener::bind(&args.listen).map_err(|error| unbound(&args.listen, &error));
        match (&args.textfile, &args.listen) {
            (Some(path), _) => {
                textfile::check(path).map_err(|error| Failure::io(path, &error))?;
                Ok(Self::Text(path.clone(), start(&OwnFile::Text(path.clone()))?))
            }
            (None, ListenAddress::Tcp(_)) => Ok(Self::Socket(bind()?, None)),
            (None, ListenAddress::Unix(path)) => {
                // Started before the socket exists, so that it does not inherit the socket.
                let mut file = start(&OwnFile::Socket(path.clone()))?;
                let listener = bind()?;
                file.send(&[]).map_err(|error| Failure::io(path, &error))?;
                Ok(Self::Socket(listener, Some(file)))
            }
        }
    }
}

fn start(file: &OwnFile) -> Result<FileProcess, Failure> {
    FileProcess::start(file).map_err(|error| {
        Failure::failed(format!("the process for the exporter's file cannot be started: {error}"))
    })
}

/// Gives up the privileges that reading does not require, and restricts the system calls. Threads
/// that start later have the same restrictions.
fn restrict() -> Result<(), Failure> {
    lowtide_probe::inspect::prepare();
    let user = keep_reading_only().map_err(|error| {
        Failure::failed(format!("the exporter cannot give up its privileges: {error}"))
    })?;
    if let User::Root(error) = user {
        note!(
            "lowtide: the exporter stays root, because it cannot change to the user nobody: {error}"
        );
    }
    seal(Role::Exporter).map_err(Failure::failed)
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
