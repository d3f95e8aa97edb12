//! The binary form, written and read; [`program`](super) shows what it looks like.
use super::{
    COMMANDS_MAX, Command, EVENTS_MAX, Event, EventNumber, Kind, MAGIC, NAME_BYTES_MAX,
    OPERANDS_MAX, Operand, PRESET_OPERANDS, Program, System, VERSION, WordError,
};

impl Kind {
    const fn code(self) -> [u8; 3] {
        match self {
            Kind::Int { .. } => [0x01, 0, 0],
            Kind::Queue => [0x02, 0, 0],
            Kind::Page => [0x03, 0, 0],
            Kind::Queues { len } => [0x10, (len >> 8) as u8, len as u8],
            Kind::Ordered { slot } => [0x11, slot, 0],
            Kind::QueueRef => [0x12, 0, 0],
            Kind::System(system) => [0x13, system as u8, 0],
        }
    }
}

impl Program {
    /// Init as words, MAGIC first: what Figure 3 shows as `event[0]`.
    pub fn init_words(&self) -> Vec<u32> {
        let mut words = vec![MAGIC];
        for (place, operand) in self.operands.iter().enumerate() {
            let [code, high, low] = operand.kind.code();
            words.push(u32::from_be_bytes([(place + PRESET_OPERANDS) as u8, code, high, low]));
            if let Kind::Int { initial } = operand.kind {
                words.push(initial as u32);
            }
        }
        words
    }

    /// The binary form.
    ///
    /// # Errors
    /// If there are more operands, commands or letters in a name than the format has room for.
    pub fn encode(&self) -> Result<Vec<u8>, EncodeError> {
        fn word(bytes: &mut Vec<u8>, word: u32) {
            bytes.extend(word.to_be_bytes());
        }
        fn name(bytes: &mut Vec<u8>, name: &str) -> Result<(), EncodeError> {
            let len = u8::try_from(name.len()).map_err(|_| EncodeError::Name(name.to_owned()))?;
            bytes.push(len);
            bytes.extend(name.bytes());
            Ok(())
        }
        if self.operands.len() > OPERANDS_MAX {
            return Err(EncodeError::Operands(self.operands.len()));
        }
        let mut bytes = Vec::new();
        word(&mut bytes, MAGIC);
        word(&mut bytes, VERSION);
        word(&mut bytes, self.operands.len() as u32);
        for operand in &self.operands {
            name(&mut bytes, &operand.name)?;
        }
        word(&mut bytes, self.events.len() as u32 + 1);
        let mut event = |number: EventNumber, label: &str, words: &[u32]| {
            word(&mut bytes, number.0.into());
            name(&mut bytes, label)?;
            word(&mut bytes, words.len() as u32);
            words.iter().for_each(|it| word(&mut bytes, *it));
            Ok(())
        };
        event(EventNumber::INIT, "Init", &self.init_words())?;
        for it in &self.events {
            if it.commands.len() > COMMANDS_MAX {
                return Err(EncodeError::Commands(it.name.clone(), it.commands.len()));
            }
            event(it.number, &it.name, &it.words())?;
        }
        Ok(bytes)
    }

    /// Reads the binary form. The program is well-formed then, and not yet verified.
    ///
    /// # Errors
    /// If the bytes are not a program of this version, with the event and word.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader { bytes };
        if reader.word()? != MAGIC {
            return Err(DecodeError::Magic);
        }
        match reader.word()? {
            VERSION => {}
            version => return Err(DecodeError::Version(version)),
        }
        let declared = reader.word()? as usize;
        if declared > OPERANDS_MAX {
            return Err(DecodeError::Operands(declared));
        }
        let names = (0..declared).map(|_| reader.name()).collect::<Result<Vec<_>, _>>()?;
        let mut program = Program::default();
        let events = reader.word()?;
        if events == 0 {
            return Err(DecodeError::InitFirst);
        }
        if events > EVENTS_MAX {
            return Err(DecodeError::Events(events));
        }
        for place in 0..events {
            let number = reader.word()?;
            let number = u8::try_from(number).map_err(|_| DecodeError::Event(number))?;
            let number = EventNumber(number);
            let name = reader.name()?;
            let words = reader.words()?;
            if words.first() != Some(&MAGIC) {
                return Err(DecodeError::EventMagic(name));
            }
            if (place == 0) != (number == EventNumber::INIT) {
                return Err(DecodeError::InitFirst);
            }
            if number.system_name().is_some_and(|system_name| system_name != name) {
                return Err(DecodeError::EventName(number.0, name));
            }
            if place == 0 {
                program.operands = decode_init(&words, &names)?;
                continue;
            }
            if words.len() > COMMANDS_MAX + 1 {
                return Err(DecodeError::Commands(name));
            }
            let commands = words
                .iter()
                .enumerate()
                .skip(1)
                .map(|(word, it)| {
                    Command::decode(*it).map_err(|source| DecodeError::Word {
                        event: name.clone(),
                        word,
                        source,
                    })
                })
                .collect::<Result<_, _>>()?;
            program.events.push(Event { number, name, commands });
        }
        if !reader.bytes.is_empty() {
            return Err(DecodeError::Trailing(reader.bytes.len()));
        }
        Ok(program)
    }
}

impl Event {
    /// The commands as words, MAGIC first.
    pub fn words(&self) -> Vec<u32> {
        std::iter::once(MAGIC).chain(self.commands.iter().map(|it| it.encode())).collect()
    }
}

fn decode_init(words: &[u32], names: &[String]) -> Result<Vec<Operand>, DecodeError> {
    let mut operands = Vec::with_capacity(names.len());
    let mut rest = words.iter().copied().enumerate().skip(1);
    while let Some((word, it)) = rest.next() {
        let wrong = |problem| DecodeError::Init { word, problem };
        let [index, code, high, low] = it.to_be_bytes();
        if usize::from(index) != operands.len() + PRESET_OPERANDS {
            return Err(wrong("its index is not the next one; declare operands in order, from 02"));
        }
        let kind = match code {
            0x01 => {
                let (_, initial) = rest
                    .next()
                    .ok_or_else(|| wrong("an Int's initial value must follow as a word"))?;
                Kind::Int { initial: initial as i32 }
            }
            0x02 => Kind::Queue,
            0x03 => Kind::Page,
            0x10 => Kind::Queues { len: u16::from_be_bytes([high, low]) },
            0x11 => Kind::Ordered { slot: high },
            0x12 => Kind::QueueRef,
            0x13 => Kind::System(
                *System::ALL
                    .get(usize::from(high))
                    .ok_or_else(|| wrong("there is no such System value; they are 00 to 07"))?,
            ),
            _ => return Err(wrong("there is no such type; types are 01 to 03 and 10 to 13")),
        };
        if kind.code() != [code, high, low] {
            return Err(wrong("a byte that this type does not use is not 00; write 00 there"));
        }
        let name = names
            .get(operands.len())
            .ok_or_else(|| wrong("the operand has no name; name as many as Init declares"))?;
        operands.push(Operand { name: name.clone(), kind });
    }
    if operands.len() != names.len() {
        return Err(DecodeError::Init {
            word: words.len(),
            problem: "there are more names than operands; name as many as Init declares",
        });
    }
    Ok(operands)
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.bytes.split_at_checked(count).ok_or(DecodeError::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    fn word(&mut self) -> Result<u32, DecodeError> {
        let (word, rest) = self.bytes.split_first_chunk().ok_or(DecodeError::Short)?;
        self.bytes = rest;
        Ok(u32::from_be_bytes(*word))
    }

    fn words(&mut self) -> Result<Vec<u32>, DecodeError> {
        let count = self.word()? as usize;
        let bytes = self.take(count.checked_mul(4).ok_or(DecodeError::Short)?)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|word| u32::from_be_bytes(*word)).collect())
    }

    fn name(&mut self) -> Result<String, DecodeError> {
        let len = self.take(1)?[0];
        let bytes = self.take(len.into())?;
        let name = std::str::from_utf8(bytes).map_err(|_| DecodeError::Name)?;
        Ok(name.to_owned())
    }
}

/// Why a program has no binary form.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// Too many operands.
    #[error("{0} operands are declared, and at most {OPERANDS_MAX} can be; use some of them twice")]
    Operands(usize),
    /// An event is too long.
    #[error(
        "event {0} has {1} commands, and at most {COMMANDS_MAX} fit; move some to an event of \
         their own and Call it"
    )]
    Commands(String, usize),
    /// A name is too long.
    #[error("`{0}` has more than {NAME_BYTES_MAX} bytes; shorten it")]
    Name(String),
}

/// Why bytes are not a program.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is something else.
    #[error("this is no compiled HiPEC program: it does not begin with `HiPE`")]
    Magic,
    /// It was written by a later version.
    #[error("the program is of version {0}, and this reads version {VERSION}; compile it again")]
    Version(u32),
    /// It ends too early.
    #[error("the program is cut off; compile it again")]
    Short,
    /// Something follows it.
    #[error("{0} bytes follow the program's end; compile it again")]
    Trailing(usize),
    /// A name is not text.
    #[error("a name is not UTF-8; compile the program again")]
    Name,
    /// Too many operands.
    #[error("{0} operands are declared, and at most {OPERANDS_MAX} can be")]
    Operands(usize),
    /// Too many events.
    #[error("{0} events are declared, and at most {EVENTS_MAX} can be")]
    Events(u32),
    /// An event's number is too high.
    #[error("event number {0} is above 255")]
    Event(u32),
    /// An event is too long.
    #[error("event {0} has more than {COMMANDS_MAX} commands")]
    Commands(String),
    /// An event does not begin with the magic word.
    #[error("event {0}: its first word must be the magic one, `HiPE`")]
    EventMagic(String),
    /// The declarations are not where they must be.
    #[error("event Init (number 0) must come first, and once; it may declare nothing")]
    InitFirst,
    /// An event of the system has another's name.
    #[error("event {0} is called `{1}`, which is not its name; compile the program again")]
    EventName(u8, String),
    /// A declaration is wrong.
    #[error("event Init, word {word}: {problem}")]
    Init {
        /// Counted from the magic word.
        word: usize,
        /// What is wrong with it and what to do.
        problem: &'static str,
    },
    /// A word is no command.
    #[error("event {event}, word {word}: {source}")]
    Word {
        /// The event's name.
        event: String,
        /// Counted from the magic word.
        word: usize,
        /// Why.
        source: WordError,
    },
}
