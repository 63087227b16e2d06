package pgqueue

// workerVariable makes the test binary a worker process.
const workerVariable = "SUPERVISOR_TEST_WORKER"

func runWorker() int { return 0 }
