//! Measures a client over TCP and over UDP, side by side, and the gateway's CPU time.
//! `./x tcp-speed` measures; without that a second of each shows that they carry anything.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::{drop_udp, installation, is_over_tcp};
use crate::client::Client;
use crate::lab::{CAMPUS_V4, Lab, eventually};
use crate::namespace::Namespace;
use crate::traffic::ping_until;

const SOON: Duration = Duration::from_secs(60);
const CHUNK: usize = 256 << 10;

/// Bits per second that one TCP connection of the client's carries in this many seconds, to the
/// campus or from there; all of them are read.
fn rate(client: &Namespace, campus: &Namespace, up: bool, seconds: u64) -> f64 {
    let listener = campus.within(|| TcpListener::bind((CAMPUS_V4, 0))).unwrap();
    let address = listener.local_addr().unwrap();
    let at_client = client.within(|| TcpStream::connect_timeout(&address, SOON)).unwrap();
    let (at_campus, _) = listener.accept().unwrap();
    let (writer, reader) = if up { (at_client, at_campus) } else { (at_campus, at_client) };
    thread::scope(|scope| {
        let reader = scope.spawn(move || read_all(reader));
        let began = Instant::now();
        write_for(writer, Duration::from_secs(seconds));
        let total = reader.join().unwrap();
        total as f64 * 8.0 / began.elapsed().as_secs_f64()
    })
}

fn write_for(mut stream: TcpStream, time: Duration) {
    stream.set_write_timeout(Some(SOON)).unwrap();
    let (began, chunk) = (Instant::now(), vec![7; CHUNK]);
    while began.elapsed() < time {
        stream.write_all(&chunk).unwrap();
    }
}

fn read_all(mut stream: TcpStream) -> usize {
    stream.set_read_timeout(Some(SOON)).unwrap();
    let (mut total, mut buffer) = (0, vec![0; CHUNK]);
    loop {
        match stream.read(&mut buffer).unwrap() {
            0 => return total,
            read => total += read,
        }
    }
}

/// CPU time that these processes have taken; `None` for one that has ended.
fn cpu(processes: &[u32]) -> Vec<Option<Duration>> {
    let time = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<u64> =
            stat.rsplit(") ").next().unwrap().split(' ').filter_map(|field| field.parse().ok()).collect();
        // Without the state, which is no number: `utime` and `stime`.
        let ticks = fields[10] + fields[11];
        Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    };
    processes.iter().map(time).collect()
}

fn median(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

#[test]
fn one_client_over_tcp_beside_one_over_udp() {
    let Some(lab) = Lab::new(2) else { return };
    let (mut gateway, ann) = installation(&lab);
    let bea = gateway.add_user("bea");
    drop_udp(&lab, "ip saddr 198.18.1.2 meta l4proto udp");
    let over_tcp = Client::connect(&lab, 1, &ann);
    eventually("it goes over TCP", SOON, || is_over_tcp(&gateway).then_some(()));
    let over_udp = Client::connect(&lab, 2, &bea);
    ping_until(over_tcp.namespace(), CAMPUS_V4.into(), SOON);
    ping_until(over_udp.namespace(), CAMPUS_V4.into(), SOON);
    let seconds = std::env::var("VPND_TCP_SECONDS").map(|seconds| seconds.parse().unwrap());
    let (rounds, seconds) = seconds.map_or((1, 1), |seconds| (5, seconds));
    let mut processes = gateway.process().children();
    processes.push(gateway.process().id());
    let ways = [("TCP", &over_tcp), ("UDP", &over_udp)];
    let mut results = [const { Vec::new() }; 4];
    for round in 0..rounds {
        // Each way comes first in turn.
        for place in 0..4 {
            let which = (place + round) % 4;
            let client = ways[which / 2].1;
            let before = cpu(&processes);
            let rate = rate(client.namespace(), &lab.campus, which % 2 == 0, seconds);
            let spent =
                cpu(&processes).into_iter().zip(before).filter_map(|(now, before)| Some(now? - before?));
            let spent = spent.sum::<Duration>().as_secs_f64();
            results[which].push((rate / 1e9, spent / (rate * seconds as f64 / 1e9)));
        }
    }
    println!(
        "way, direction: Gbit/s (least to most); CPU seconds of the gateway per Gbit; {rounds} x {seconds} s"
    );
    for (which, all) in results.into_iter().enumerate() {
        let (rates, costs): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        let ((rate, least, most), (cost, ..)) = (median(rates), median(costs));
        let direction = ["up", "down"][which % 2];
        println!("{} {direction}: {rate:.2} ({least:.2} to {most:.2}); {cost:.2}", ways[which / 2].0);
        assert!(rate > 0.0);
    }
}
