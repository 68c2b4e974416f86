//! The writer: keeps up to `ahead` blocks in progress and notes when each is answered.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::content::Content;
use super::seal::{self, End, Opener, Salt, Sealer};
use super::target::encode_header;
use super::{BlockError, Blocks, Frame, HEADER_BYTES, IDLE_TIMEOUT, Protection, READY, WriterJob};
use crate::clock;

/// Longest measurement, however few answers have come.
const MOST: Duration = Duration::from_secs(120);
/// Most answers of which the instants are kept.
const MOST_ANSWERS: usize = 10_000_000;

/// The account of a writer.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wrote {
    pub sent: u64,
    pub acknowledged: u64,
    /// Blocks per second once it was going; absent if too few were answered.
    pub blocks_per_second: Option<f64>,
    /// Making the connection, one round trip, ns.
    pub connect_ns: u64,
    pub seal_ns: u64,
    /// CPU time of the process, ns.
    pub cpu_ns: u64,
    /// Why it ended early.
    pub fault: Option<String>,
}

/// Writes blocks as `job` says, until then or until `stopped`, which is asked before each block and
/// each answer.
///
/// # Errors
/// [`BlockError`] when the target could not be greeted; later failures are in [`Wrote::fault`].
pub fn write(job: &WriterJob, stopped: &mut dyn FnMut() -> bool) -> Result<Wrote, BlockError> {
    let cpu_before = clock::process_cpu_ns();
    let content = Content::new(job.seed);
    let mut writer = Writer::connect(job, &content)?;
    let fault = writer.run(stopped).err();
    let mut wrote = writer.wrote;
    wrote.blocks_per_second = steady_rate(&writer.answers, u64::from(job.ahead));
    wrote.cpu_ns = clock::process_cpu_ns() - cpu_before;
    wrote.fault = fault.map(|error| error.to_string());
    Ok(wrote)
}

struct Writer<'a> {
    job: &'a WriterJob,
    content: &'a Content,
    stream: TcpStream,
    keys: Option<(Sealer, Opener)>,
    /// Header and data of the block that is being sent.
    frame: Vec<u8>,
    /// Blocks for which the target is not ready yet, and frames to use again.
    held: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    /// Blocks whose data were sent.
    data_sent: u64,
    /// After the warm-up: when how many blocks had been answered.
    answers: Vec<(u64, u64)>,
    wrote: Wrote,
}

impl<'a> Writer<'a> {
    fn connect(job: &'a WriterJob, content: &'a Content) -> Result<Self, BlockError> {
        let Blocks { secret, protection, sealing, block_bytes, congestion, .. } = &job.blocks;
        let failed = BlockError::connection("connecting to the target");
        let greet = || {
            let begin = Instant::now();
            let stream = congestion.connect(job.peer, IDLE_TIMEOUT)?;
            let connect_ns = begin.elapsed().as_nanos() as u64;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
            stream.set_write_timeout(Some(IDLE_TIMEOUT))?;
            let own: Salt = rand::random();
            let greeting = [own, seal::proof(secret, &own)].concat();
            (&stream).write_all(&greeting)?;
            let mut other = Salt::default();
            (&stream).read_exact(&mut other)?;
            Ok((stream, own, other, connect_ns))
        };
        let (stream, own, other, connect_ns) = greet().map_err(failed)?;
        let sealed = *protection == Protection::Sealed;
        let keys = sealed.then(|| seal::keys(secret, *sealing, End::Writer, (&own, &other)));
        let plain = *block_bytes as usize;
        let len = if sealed { seal::sealed_len(plain) } else { plain };
        let frame = vec![0; HEADER_BYTES + len];
        let wrote = Wrote { connect_ns, ..Wrote::default() };
        let (held, spare, answers) = (VecDeque::new(), Vec::new(), Vec::new());
        Ok(Self { job, content, stream, keys, frame, held, spare, data_sent: 0, answers, wrote })
    }

    fn run(&mut self, stopped: &mut dyn FnMut() -> bool) -> Result<(), BlockError> {
        let counts = Instant::now() + Duration::from_millis(self.job.warmup_ms);
        let ends = counts + Duration::from_millis(self.job.duration_ms);
        let gives_up = ends.max(Instant::now() + MOST);
        loop {
            if stopped() {
                return Err(BlockError::Stopped);
            }
            let now = Instant::now();
            let enough = self.answers.len() as u64 > 2 * u64::from(self.job.ahead) || now >= gives_up;
            let done = (now >= ends && enough)
                || self.job.most_blocks.is_some_and(|most| self.wrote.sent >= most)
                || self.answers.len() >= MOST_ANSWERS;
            let in_progress = self.wrote.sent - self.wrote.acknowledged;
            if !done && in_progress < u64::from(self.job.ahead) {
                self.send()?;
            } else if in_progress > 0 {
                let is_answer = self.take_answer()?;
                // While it ends, nothing new is sent, so these answers come faster than the rate.
                if is_answer && !done && Instant::now() >= counts {
                    self.answers.push((clock::now_ns(), self.wrote.acknowledged));
                }
            } else {
                return Ok(());
            }
        }
    }

    /// Sends the next block, or says that it would, where the target is to ask for it: then it is
    /// sealed meanwhile.
    fn send(&mut self) -> Result<(), BlockError> {
        let number = self.wrote.sent;
        let ready_first = self.job.blocks.ready_first;
        let frame = if ready_first { Frame::Data } else { Frame::Block };
        let header = encode_header(&self.job.blocks, number, frame);
        if ready_first {
            let command = encode_header(&self.job.blocks, number, Frame::Command);
            self.stream.write_all(&command).map_err(BlockError::connection("announcing a block"))?;
        }
        self.frame[..HEADER_BYTES].copy_from_slice(&header);
        let data = &mut self.frame[HEADER_BYTES..];
        match &mut self.keys {
            Some((sealer, _)) => {
                lay_out(self.content, number, self.job.blocks.block_bytes as usize, data);
                let begin = Instant::now();
                sealer.seal(&header, data)?;
                self.wrote.seal_ns += begin.elapsed().as_nanos() as u64;
            }
            None => self.content.fill(number, data),
        }
        // Counted before it leaves: the target may get a part of it even if this fails.
        self.wrote.sent += 1;
        if ready_first {
            let next = self.spare.pop().unwrap_or_else(|| vec![0; self.frame.len()]);
            self.held.push_back(std::mem::replace(&mut self.frame, next));
            return Ok(());
        }
        self.data_sent += 1;
        self.stream.write_all(&self.frame).map_err(BlockError::connection("sending a block"))
    }

    /// Sends the data that the target asks for.
    fn give(&mut self, number: u64) -> Result<(), BlockError> {
        let Some(data) = self.held.pop_front().filter(|_| number == self.data_sent) else {
            return Err(BlockError::Broken("the target is ready for a block that is not the next one"));
        };
        self.data_sent += 1;
        self.stream.write_all(&data).map_err(BlockError::connection("sending a block"))?;
        self.spare.push(data);
        Ok(())
    }

    /// Takes the target's next word; true for an answer, false where it was ready for a block.
    fn take_answer(&mut self) -> Result<bool, BlockError> {
        let mut answer = [0; 8 + seal::TAG_BYTES];
        let len = if self.keys.is_some() { answer.len() } else { 8 };
        self.stream
            .read_exact(&mut answer[..len])
            .map_err(BlockError::connection("waiting for an answer"))?;
        if let Some((_, opener)) = &mut self.keys {
            opener.open(&[], &mut answer)?;
        }
        let word = u64::from_le_bytes(answer[..8].try_into().expect("eight bytes"));
        if word & READY != 0 {
            return self.give(word & !READY).map(|()| false);
        }
        let on_disk = word;
        if on_disk <= self.wrote.acknowledged || on_disk > self.data_sent {
            return Err(BlockError::Broken("an answer for blocks that do not wait for one"));
        }
        self.wrote.acknowledged = on_disk;
        Ok(true)
    }
}

/// Puts the plaintext of each record where the record will be.
fn lay_out(content: &Content, number: u64, block_bytes: usize, data: &mut [u8]) {
    content.fill(number, &mut data[..block_bytes]);
    let records = block_bytes.div_ceil(seal::RECORD_BYTES);
    // From the last to the first, so that none is overwritten before it has moved.
    for record in (1..records).rev() {
        let from = record * seal::RECORD_BYTES;
        let end = block_bytes.min(from + seal::RECORD_BYTES);
        data.copy_within(from..end, from + record * seal::TAG_BYTES);
    }
}

/// Blocks per second between two answers that lie a multiple of `ahead` blocks apart: answers come
/// in bursts of `ahead` at long delays, and a part of a burst would count too much. For the same
/// reason an answer that covers more blocks than the last one that counts does not count with all
/// of them: with n in progress the rate is never above n for each round trip.
pub fn steady_rate(answers: &[(u64, u64)], ahead: u64) -> Option<f64> {
    let &(first_ns, first) = answers.first()?;
    let &(_, last) = answers.last()?;
    let blocks = (last - first) / ahead * ahead;
    if blocks == 0 {
        return None;
    }
    let at = answers.partition_point(|(_, answered)| *answered < first + blocks);
    let &(end_ns, _) = answers.get(at)?;
    (end_ns > first_ns).then(|| blocks as f64 * 1e9 / (end_ns - first_ns) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_taken_over_whole_bursts() {
        // Bursts of 4 every 100 ms: 40 blocks per second.
        let bursts: Vec<(u64, u64)> = (1..=10)
            .flat_map(|burst| (1..=4).map(move |n| (burst * 100_000_000 + n, burst * 4 + n)))
            .collect();
        for cut in 0..4 {
            let rate = steady_rate(&bursts[cut..bursts.len() - cut], 4).unwrap();
            assert!((rate - 40.0).abs() < 0.001, "{rate}");
        }
    }

    #[test]
    fn too_few_answers_give_no_rate() {
        assert_eq!(steady_rate(&[], 1), None);
        assert_eq!(steady_rate(&[(5, 1)], 1), None);
        assert_eq!(steady_rate(&[(5, 1), (6, 3)], 4), None);
        assert_eq!(steady_rate(&[(5, 1), (5, 2)], 1), None, "no time has passed");
    }

    #[test]
    fn the_rate_is_bounded_by_blocks_in_progress_per_round_trip() {
        // Eight in progress, a round trip of 40 ms, and a target that was busy: after the first
        // three blocks one answer covers a whole burst and a part of the next.
        let answers: Vec<(u64, u64)> = (0..4).map(|trip| (trip * 40_000_000, 3 + trip * 8)).collect();
        let late = [&answers[..3], &[(120_000_000, 3 + 24 + 5)]].concat();
        for answers in [answers, late] {
            assert_eq!(steady_rate(&answers, 8), Some(200.0), "{answers:?}");
        }
    }

    #[test]
    fn the_parts_of_a_block_lie_where_their_records_will_be() {
        let content = Content::new(1);
        let plain_len = 2 * seal::RECORD_BYTES + 100;
        let mut plain = vec![0; plain_len];
        content.fill(7, &mut plain);
        let mut data = vec![0; seal::sealed_len(plain_len)];
        lay_out(&content, 7, plain_len, &mut data);
        let records = data.chunks(seal::RECORD_BYTES + seal::TAG_BYTES);
        let parts: Vec<u8> =
            records.flat_map(|record| record[..record.len() - seal::TAG_BYTES].to_vec()).collect();
        assert!(parts == plain);
    }
}
